// What the kernels below ask of the machine: a streaming load, one matrix step, four-bit weights.

namespace dflash {

using bf16 = __nv_bfloat16;

constexpr int kWarps = 8;  // warps of a block; they share out the sum over k

struct Nothing {};  // of shared memory

// 16 bytes that are read once: kept out of the L1, where the activations live. Volatile, so that
// the loads of a step stay ahead of its arithmetic.
__device__ __forceinline__ uint4 load_once(const void* address) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(address));
  return v;
}

// 16 bytes that other warps read too. Not __ldg: a step before, in the same launch, may have
// written them.
__device__ __forceinline__ uint4 load_shared_line(const void* address) {
  return *reinterpret_cast<const uint4*>(address);
}

// 128 bytes on their way into the L2.
__device__ __forceinline__ void warm_line(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// The first `most` bytes of a tile's rows of `width` bytes.
template <typename Which>
__device__ __forceinline__ void warm_rows(const void* rows, const Which& which, int width, int most) {
  const int lines = ((width < most ? width : most) + 127) / 128;
#pragma unroll 1
  for (int i = threadIdx.x; i < which.count() * lines; i += kWarps * 32)
    warm_line(static_cast<const char*>(rows) + size_t(which.row(i / lines)) * width + i % lines * 128);
}

// The shared memory that the launch asked for.
__device__ __forceinline__ void* room() {
  extern __shared__ uint4 words[];
  return words;
}

// BYTES (4, 8 or 16) on their way from global into shared memory; they are there once the copies up
// to the end that follows them have been waited for.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* to, const void* from) {
  const unsigned place = unsigned(__cvta_generic_to_shared(to));
  if (BYTES == 16)  // not through the L1
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(place), "l"(from), "n"(BYTES)
                 : "memory");
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until no more than the last N ends of this thread are open; others see it after a barrier.
template <int N>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
__device__ __forceinline__ void warp_sync() { __syncwarp(); }

// A barrier of the kWarps warps of one half of a block; 0 is the block's own.
__device__ __forceinline__ void half_sync(int half) {
  asm volatile("bar.sync %0, %1;" ::"r"(half + 1), "n"(kWarps * 32) : "memory");
}

// What another block may have written in this launch.
__device__ __forceinline__ float load_fresh(const float* address) { return __ldcg(address); }

// Nibbles 0 and 4 of a word as the bfloat16 numbers 128 + q.
__device__ __forceinline__ unsigned nibble_pair(unsigned word) {
  unsigned pair;  // (word & mask) | number in one instruction, which the compiler does not find
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(pair) : "r"(word), "r"(0x000F000Fu), "r"(0x43004300u));
  return pair;
}

// c (16 x 8) += a (16 x 16) * b (16 x 8): bfloat16 in, float32 out, one warp.
__device__ __forceinline__ void matrix_step(
    float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Nibbles 0 and 4 of `word` as the bfloat16 pair q * scale + bias, rounded once.
// 0x4300 | q is the bfloat16 number 128 + q, so that q itself is exact.
__device__ __forceinline__ unsigned dequantize(
    unsigned word, __nv_bfloat162 scale, __nv_bfloat162 bias) {
  const unsigned shifted = (word & 0x000F000Fu) | 0x43004300u;
  const __nv_bfloat162 number = *reinterpret_cast<const __nv_bfloat162*>(&shifted);
  const __nv_bfloat162 q = __hsub2(number, __float2bfloat162_rn(128.0f));
  const __nv_bfloat162 w = __hfma2(q, scale, bias);
  return *reinterpret_cast<const unsigned*>(&w);
}

// The two bfloat16 numbers of a word.
__device__ __forceinline__ float low_number(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_number(unsigned pair) {
  return __uint_as_float(pair & 0xFFFF0000u);
}

// a and b as bfloat16.
__device__ __forceinline__ unsigned pair_of(float a, float b) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<const unsigned*>(&pair);
}

// The products of two pairs, rounded.
__device__ __forceinline__ unsigned multiply_pairs(unsigned a, unsigned b) {
  const __nv_bfloat162 product = __hmul2(
      *reinterpret_cast<const __nv_bfloat162*>(&a), *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const unsigned*>(&product);
}

// The sum of the eight bfloat16 numbers.
__device__ __forceinline__ float sum_of_eight(uint4 v) {
  const float a = low_number(v.x) + high_number(v.x), b = low_number(v.y) + high_number(v.y);
  const float c = low_number(v.z) + high_number(v.z), d = low_number(v.w) + high_number(v.w);
  return (a + b) + (c + d);
}

__device__ __forceinline__ float silu(float x) {
  return x * __fdividef(1.0f, 1.0f + __expf(-x));
}

// The low (or high) halves of a and b side by side.
__device__ __forceinline__ unsigned low_halves(unsigned a, unsigned b) {
  return __byte_perm(a, b, 0x5410);
}
__device__ __forceinline__ unsigned high_halves(unsigned a, unsigned b) {
  return __byte_perm(a, b, 0x7632);
}

// Where all blocks of a launch wait for each other; all of them must be resident. Two words, zero
// before the first launch and between any two: how many have come, and how often all have.
constexpr int kApart = 32;                // a line of the cache
constexpr long long kPatience = 1ll << 35;  // cycles; some 17 seconds

struct Grid {
  unsigned* words;

  __device__ __forceinline__ void sync() const {
    __syncthreads();
    if (threadIdx.x == 0) {
      volatile unsigned* turns = words + kApart;
      const unsigned turn = *turns;
      __threadfence();  // what this block wrote is seen before it is counted
      if (atomicAdd(words, 1) == gridDim.x - 1) {
        words[0] = 0;
        __threadfence();
        atomicAdd(words + kApart, 1);
      } else {
        const long long began = clock64();
        while (*turns == turn)
          if (clock64() - began > kPatience) __trap();  // the others have no room: an error, no hang
      }
      __threadfence();
    }
    __syncthreads();
  }
};

__device__ __forceinline__ int warp_xor(int value, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, mask);
}
__device__ __forceinline__ float warp_xor(float value, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, mask);
}

// The largest number of a warp.
__device__ __forceinline__ unsigned warp_max(unsigned value) {
  return __reduce_max_sync(0xFFFFFFFFu, value);
}
__device__ __forceinline__ unsigned long long warp_max(unsigned long long value) {
  const unsigned high = warp_max(unsigned(value >> 32));
  const unsigned low = warp_max(unsigned(value >> 32) == high ? unsigned(value) : 0u);
  return (unsigned long long)(high) << 32 | low;
}

}  // namespace dflash
