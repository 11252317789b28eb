// CUDA's words for a CPU, so that the suite's kernels can be run and held where there is no GPU.
//
// A block's threads are coroutines that are switched at barriers only. Floats are added in the
// order of the text, without fused multiply-adds, so that sums can differ from a GPU's in their
// last bits; what must hold bit for bit is that a row's result does not depend on its neighbours.
// Replaces primitives.cu, whose instructions no CPU has.

#include <sched.h>
#include <setjmp.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __noinline__ inline
#define __shared__ static

using std::max;
using std::min;

struct Dim {
  int x, y, z;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint4 make_uint4(unsigned a, unsigned b, unsigned c, unsigned d) { return {a, b, c, d}; }
inline float4 make_float4(float a, float b, float c, float d) { return {a, b, c, d}; }
inline float __int_as_float(int bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
inline unsigned __float_as_uint(float number) {
  unsigned bits;
  std::memcpy(&bits, &number, sizeof(bits));
  return bits;
}
inline float __uint_as_float(unsigned bits) { return __int_as_float(int(bits)); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

// Rounds to nearest, ties to even.
struct __nv_bfloat16 {
  uint16_t bits;
  __nv_bfloat16() = default;
  __nv_bfloat16(float value) {
    uint32_t word;
    memcpy(&word, &value, 4);
    bits = (word + 0x7FFF + ((word >> 16) & 1)) >> 16;
  }
  operator float() const {
    const uint32_t word = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
  }
};
struct __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return {a, a}; }

constexpr int kMostThreads = 512;
static int current, thread_count, block_arrived, block_turn, warp_arrived[16], warp_turn[16];
static int half_arrived[2], half_turn[2];
static Dim thread_index[kMostThreads], blockIdx, gridDim;
#define threadIdx thread_index[current]
static ucontext_t threads[kMostThreads];
static jmp_buf scheduler, paused[kMostThreads];  // a jump is no call of the system, as a swap is
static bool alive[kMostThreads], begun[kMostThreads];
static std::function<void()> body;

inline void give_way() {
  const int me = current;
  if (_setjmp(paused[me]) == 0) _longjmp(scheduler, 1);
  current = me;
}

inline void wait_for_all(int& arrived, int& turn, int count) {
  const int mine = turn;
  if (++arrived == count) {
    arrived = 0;
    turn++;
    return;
  }
  while (turn == mine) give_way();
}

inline void __syncthreads() { wait_for_all(block_arrived, block_turn, thread_count); }
inline void wait_for_warp() { wait_for_all(warp_arrived[current / 32], warp_turn[current / 32], 32); }

static void enter(int index) {
  current = index;
  body();
  alive[index] = false;
  _longjmp(scheduler, 1);
}

// Run a thread until it gives way or ends.
static __attribute__((noinline)) void resume(int index) {
  current = index;
  if (_setjmp(scheduler) != 0) return;
  if (begun[index]) _longjmp(paused[index], 1);
  begun[index] = true;
  setcontext(&threads[index]);
}

static std::vector<std::vector<char>> stacks(kMostThreads, std::vector<char>(65536));

struct Copy {
  void* to;
  const void* from;
  int bytes;
};
alignas(16) static char shared_room[232448];
static std::vector<std::vector<Copy>> open_copies[kMostThreads];  // by their ends

inline void run_block(int block, int count) {
  blockIdx = {block, 0, 0};
  block_arrived = 0;
  memset(warp_arrived, 0, sizeof warp_arrived);
  memset(half_arrived, 0, sizeof half_arrived);
  memset(shared_room, 0x7F, sizeof shared_room);  // what is read unwritten is enormous
  for (int i = 0; i < count; ++i) open_copies[i].assign(1, {});
  for (int i = 0; i < count; ++i) {
    thread_index[i] = {i, 0, 0};
    getcontext(&threads[i]);
    threads[i].uc_stack.ss_sp = stacks[i].data();
    threads[i].uc_stack.ss_size = stacks[i].size();
    threads[i].uc_link = nullptr;
    makecontext(&threads[i], (void (*)())enter, 1, i);
    alive[i] = true;
    begun[i] = false;
  }
  for (int left = count; left > 0;) {
    left = 0;
    for (int i = 0; i < count; ++i) {
      if (!alive[i]) continue;
      resume(i);
      left += alive[i];
    }
  }
}

// One block after another.
inline int launch(int blocks, int count, std::function<void()> function, unsigned*) {
  thread_count = count, body = function, gridDim = {blocks, 1, 1};
  for (int block = 0; block < blocks; ++block) run_block(block, count);
  return 0;
}

static unsigned* gate;  // two words that all blocks of a launch see

// Blocks that wait for each other, each a process with shared memory of its own: a step that does
// not wait reads what is not written yet. What they write must be in memory that all of them see.
inline int launch_together(
    int blocks, int count, std::function<void()> function, unsigned* words) {
  thread_count = count, body = function, gridDim = {blocks, 1, 1}, gate = words;
  std::vector<pid_t> children;
  for (int block = 0; block < blocks; ++block) {
    const pid_t child = fork();
    if (child == 0) {
      run_block(block, count);
      _exit(0);
    }
    children.push_back(child);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    failed |= status;
  }
  return failed;
}

inline void __threadfence_system() {}
inline void __threadfence() {}
inline unsigned atomicAdd(unsigned* to, unsigned value) {
  return __atomic_fetch_add(to, value, __ATOMIC_SEQ_CST);
}

namespace dflash {

using bf16 = __nv_bfloat16;
constexpr int kWarps = 8;

struct Nothing {};
struct Grid {
  unsigned* words;
  void sync() const {
    __syncthreads();
    if (threadIdx.x == 0) {
      const unsigned turn = __atomic_load_n(gate + 1, __ATOMIC_SEQ_CST);
      if (int(__atomic_add_fetch(gate, 1, __ATOMIC_SEQ_CST)) == gridDim.x) {
        __atomic_store_n(gate, 0, __ATOMIC_SEQ_CST);
        __atomic_add_fetch(gate + 1, 1, __ATOMIC_SEQ_CST);
      }
      for (long tries = 0; __atomic_load_n(gate + 1, __ATOMIC_SEQ_CST) == turn; ++tries) {
        if (tries > 100000000) _exit(1);  // another one failed
        sched_yield();
      }
    }
    __syncthreads();
  }
};

inline void warm_line(const void* address) {
  static volatile char seen;
  seen = *static_cast<const char*>(address);
}
template <typename Which>
inline void warm_rows(const void* rows, const Which& which, int width, int) {  // as far as it may read
  for (int i = threadIdx.x; i < which.count() * width; i += kWarps * 32)
    warm_line(static_cast<const char*>(rows) + size_t(which.row(i / width)) * width + i % width);
}
inline void* room() { return shared_room; }

// A copy that happens when its thread waits for it, and no sooner.
template <int BYTES>
inline void copy_async(void* to, const void* from) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "as the instruction has it");
  if ((uintptr_t(to) | uintptr_t(from)) % BYTES) _exit(1);
  open_copies[current].back().push_back({to, from, BYTES});
}
inline void end_copies() { open_copies[current].push_back({}); }
template <int N>
inline void wait_copies() {
  auto& open = open_copies[current];
  for (; int(open.size()) > N + 1; open.erase(open.begin()))
    for (const Copy& copy : open.front()) memcpy(copy.to, copy.from, copy.bytes);
}
inline void warp_sync() { wait_for_warp(); }
inline void half_sync(int half) { wait_for_all(half_arrived[half], half_turn[half], 256); }
inline float load_fresh(const float* address) { return *address; }
inline unsigned nibble_pair(unsigned word) { return (word & 0x000F000Fu) | 0x43004300u; }

inline uint4 load_once(const void* address) { return *static_cast<const uint4*>(address); }
inline uint4 load_shared_line(const void* address) { return *static_cast<const uint4*>(address); }

template <typename T>
inline T exchange(T value, int mask) {
  static T held[kMostThreads];
  held[current] = value;
  wait_for_warp();
  const T other = held[current ^ mask];
  wait_for_warp();
  return other;
}
inline int warp_xor(int value, int mask) { return exchange(value, mask); }
inline float warp_xor(float value, int mask) { return exchange(value, mask); }

inline unsigned warp_max(unsigned value) {
  for (int mask = 16; mask > 0; mask /= 2) {
    const unsigned other = exchange(value, mask);
    value = other > value ? other : value;
  }
  return value;
}
inline unsigned long long warp_max(unsigned long long value) {
  for (int mask = 16; mask > 0; mask /= 2) {
    const unsigned long long other = exchange(value, mask);
    value = other > value ? other : value;
  }
  return value;
}

inline float low_number(unsigned pair) { return __int_as_float(pair << 16); }
inline float high_number(unsigned pair) { return __int_as_float(pair & 0xFFFF0000u); }
inline unsigned pair_of(float a, float b) { return bf16(a).bits | (uint32_t(bf16(b).bits) << 16); }
inline unsigned multiply_pairs(unsigned a, unsigned b) {
  return pair_of(low_number(a) * low_number(b), high_number(a) * high_number(b));
}
inline float sum_of_eight(uint4 v) {
  const float a = low_number(v.x) + high_number(v.x), b = low_number(v.y) + high_number(v.y);
  const float c = low_number(v.z) + high_number(v.z), d = low_number(v.w) + high_number(v.w);
  return (a + b) + (c + d);
}
inline float silu(float x) { return x / (1.0f + expf(-x)); }
inline float half_of(unsigned pair, int high) {
  return high ? high_number(pair) : low_number(pair);
}

// mma.m16n8k16 by its register layout: lane = 4 * group + pair.
inline void matrix_step(
    float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  static unsigned a[kMostThreads][4], b[kMostThreads][2];
  const int warp = current / 32 * 32, group = current % 32 / 4, pair = current % 4;
  a[current][0] = a0, a[current][1] = a1, a[current][2] = a2, a[current][3] = a3;
  b[current][0] = b0, b[current][1] = b1;
  wait_for_warp();
  for (int i = 0; i < 4; ++i) {
    const int row = group + 8 * (i / 2), column = 2 * pair + i % 2;
    for (int k = 0; k < 16; ++k) {
      const int lane = k % 8 / 2;
      const float left = half_of(a[warp + row % 8 * 4 + lane][row / 8 + 2 * (k / 8)], k % 2);
      c[i] += left * half_of(b[warp + column * 4 + lane][k / 8], k % 2);
    }
  }
  wait_for_warp();
}

inline unsigned dequantize(unsigned word, __nv_bfloat162 scale, __nv_bfloat162 bias) {
  const bf16 low(float(word & 0xF) * float(scale.x) + float(bias.x));
  const bf16 high(float((word >> 16) & 0xF) * float(scale.y) + float(bias.y));
  return low.bits | (uint32_t(high.bits) << 16);
}
inline unsigned low_halves(unsigned a, unsigned b) { return (a & 0xFFFF) | (b << 16); }
inline unsigned high_halves(unsigned a, unsigned b) { return (a >> 16) | (b & 0xFFFF0000u); }

}  // namespace dflash
