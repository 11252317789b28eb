// The rows of x that a projection is fed: as they stand, or normed on the way, so that a norm costs
// no launch. `measure` is called once by the whole block, or `measure_all` by one that shares a row out
// to its WARPS warps; `fed` is called for eight numbers of a row from k on. A row is measured in an
// order that does not know of other rows, and rounded where the separate operations round.

namespace dflash {

// Eight neighbouring numbers of a row.
template <typename T>
struct Piece {
  uint4 v[sizeof(T) / 2];

  __device__ __forceinline__ void load(const T* at) {
#pragma unroll
    for (int i = 0; i < int(sizeof(T)) / 2; ++i) v[i] = load_shared_line(at + i * 16 / sizeof(T));
  }
  __device__ __forceinline__ unsigned word(int i) const {
    const uint4 four = v[i / 4];
    return i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
  }
  __device__ __forceinline__ float number(int i) const {
    if (sizeof(T) == 4) return __uint_as_float(word(i));
    return i % 2 == 0 ? low_number(word(i / 2)) : high_number(word(i / 2));
  }
  __device__ __forceinline__ float squares() const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += number(i) * number(i);
    return sum;
  }
  // times `factor` times eight weights: bfloat16 numbers are rounded in between, as MLX does.
  __device__ __forceinline__ uint4 scaled(float factor, const bf16* weight) const {
    const uint4 w = load_shared_line(weight);
    return make_uint4(
        pair(0, factor, w.x), pair(1, factor, w.y), pair(2, factor, w.z), pair(3, factor, w.w));
  }
  __device__ __forceinline__ unsigned pair(int i, float factor, unsigned w) const {
    const float a = number(2 * i) * factor, b = number(2 * i + 1) * factor;
    return sizeof(T) == 4 ? pair_of(a * low_number(w), b * high_number(w))
                          : multiply_pairs(pair_of(a, b), w);
  }
};

// x (M, K) itself.
struct Given {
  using In = bf16;
  const bf16* x;

  __device__ __forceinline__ void measure(int M, int K) const {}
  template <int WARPS>
  __device__ __forceinline__ void measure_all(int M, int K) const {}
  __device__ __forceinline__ uint4 fed(const Piece<bf16>& piece, int row, int k) const {
    return piece.v[0];
  }
  __device__ __forceinline__ float number(int row, int k, int K) const {
    return float(x[size_t(row) * K + k]);
  }
};

// rms_norm(x) * weight. factors: room for one number a row in shared memory; to be measured by all
// warps, for one more for every 256 numbers of a row, of 16 rows.
template <typename T>
struct Normed {
  using In = T;
  const T* x;
  const bf16* weight;
  float eps;
  float* factors;

  __device__ __forceinline__ void measure(int M, int K) const {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < M; row += kWarps) {
      float squares = 0.0f;
#pragma unroll 4
      for (int k = lane * 8; k < K; k += 256) {
        Piece<T> piece;
        piece.load(x + size_t(row) * K + k);
        squares += piece.squares();
      }
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) squares += warp_xor(squares, mask);
      if (lane == 0) factors[row] = rsqrtf(squares / K + eps);
    }
    __syncthreads();
  }
  template <int WARPS>
  __device__ __forceinline__ void measure_all(int M, int K) const {
    constexpr int kBatch = 4;  // loads under way
    const int lane = threadIdx.x % 32, parts = (K + 255) / 256, count = M * parts;
    float* sums = factors + 16;
#pragma unroll 1
    for (int first = threadIdx.x / 32; first < count; first += WARPS * kBatch) {
      Piece<T> pieces[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int at = min(first + i * WARPS, count - 1), k = at % parts * 256 + lane * 8;
        pieces[i].load(x + size_t(at / parts) * K + (k < K ? k : 0));
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int at = min(first + i * WARPS, count - 1);
        float squares = at % parts * 256 + lane * 8 < K ? pieces[i].squares() : 0.0f;
#pragma unroll
        for (int mask = 16; mask > 0; mask /= 2) squares += warp_xor(squares, mask);
        if (lane == 0) sums[at] = squares;
      }
    }
    __syncthreads();
    for (int row = threadIdx.x / 32; row < M; row += WARPS) {
      float squares = 0.0f;
      for (int i = lane; i < parts; i += 32) squares += sums[row * parts + i];
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) squares += warp_xor(squares, mask);
      if (lane == 0) factors[row] = rsqrtf(squares / K + eps);
    }
    __syncthreads();
  }
  __device__ __forceinline__ uint4 fed(const Piece<T>& piece, int row, int k) const {
    return piece.scaled(factors[row], weight + k);
  }
  __device__ __forceinline__ float number(int row, int k, int K) const {
    const float scaled = float(x[size_t(row) * K + k]) * factors[row];
    return float(bf16((sizeof(T) == 4 ? scaled : float(bf16(scaled))) * float(weight[k])));
  }
};

// rms_norm(x), a head of D numbers at a time, * weight (D) * silu(gate (M, K)). factors: room for
// one number a head of every row.
template <int D>
struct GateNormed {
  using In = bf16;
  const bf16* x;
  const bf16* weight;
  const bf16* gate;
  int K;
  float eps;
  float* factors;

  __device__ __forceinline__ void measure(int M, int K) const { measure_all<kWarps>(M, K); }
  template <int WARPS>
  __device__ __forceinline__ void measure_all(int M, int) const {
    constexpr int kLanes = D / 8, kHeads = 32 / kLanes;  // lanes of a head, heads of a warp
    const int lane = threadIdx.x % 32, count = M * (K / D);
#pragma unroll 4
    for (int first = threadIdx.x / 32 * kHeads; first < count; first += WARPS * kHeads) {
      const int head = first + lane / kLanes;
      Piece<bf16> piece;
      piece.load(x + size_t(min(head, count - 1)) * D + lane % kLanes * 8);
      float squares = piece.squares();
#pragma unroll
      for (int mask = kLanes / 2; mask > 0; mask /= 2) squares += warp_xor(squares, mask);
      if (lane % kLanes == 0 && head < count) factors[head] = rsqrtf(squares / D + eps);
    }
    __syncthreads();
  }
  __device__ __forceinline__ uint4 fed(const Piece<bf16>& piece, int row, int k) const {
    const Piece<bf16> normed{{piece.scaled(factors[row * (K / D) + k / D], weight + k % D)}};
    Piece<bf16> z;
    z.load(gate + size_t(row) * K + k);
    unsigned out[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      out[i] = pair_of(
          silu(z.number(2 * i)) * normed.number(2 * i),
          silu(z.number(2 * i + 1)) * normed.number(2 * i + 1));
    return make_uint4(out[0], out[1], out[2], out[3]);
  }
};

__device__ __forceinline__ Given given(const bf16* x) { return {x}; }

template <typename T>
__device__ __forceinline__ Normed<T> normed(
    const T* x, const bf16* weight, float eps, float* factors) {
  return {x, weight, eps, factors};
}

template <int D>
__device__ __forceinline__ GateNormed<D> gate_normed(
    const bf16* x, const bf16* weight, const bf16* gate, int K, float eps, float* factors) {
  return {x, weight, gate, K, eps, factors};
}

}  // namespace dflash
