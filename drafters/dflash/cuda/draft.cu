// The small operations of a draft, as steps. T rows of width D.

namespace dflash {

template <typename T>
__device__ __forceinline__ T block_sum(T value, T* scratch) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) value += warp_xor(value, mask);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  T sum = scratch[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) sum += scratch[i];
  return sum;
}

// Rows of a table in bfloat16, times scale: a block a row. out (T, D).
__device__ __forceinline__ void embed(
    const bf16* w, const int* names, float* out, int D, float scale, int block) {
  const size_t from = size_t(names[block]) * D, to = size_t(block) * D;
  for (int c = threadIdx.x; c < D; c += kWarps * 32) out[to + c] = float(w[from + c]) * scale;
}

// The same of one in four bits, eight numbers a word, unpacked as `dequantize` does.
template <int GROUP>
__device__ __forceinline__ void embed(
    const unsigned* w, const bf16* scales, const bf16* biases, const int* names, float* out, int D,
    float scale, int block) {
  const size_t row = size_t(names[block]), to = size_t(block) * D;
  for (int c = threadIdx.x; c < D; c += kWarps * 32) {
    const unsigned q = (w[row * (D / 8) + c / 8] >> (c % 8 * 4)) & 15u;
    const size_t group = row * (D / GROUP) + c / GROUP;
    const float number = fmaf(float(q), float(scales[group]), float(biases[group]));
    out[to + c] = float(bf16(number)) * scale;
  }
}

struct HeldSums {  // in shared memory
  float of_warps[kWarps];
};

// out (T, D) = rms_norm(x) * weight, x in float32: a block a row.
template <typename In>
__device__ __forceinline__ void row_norm(
    const float* x, const In* weight, In* out, int D, float eps, int block, HeldSums& held) {
  float* scratch = held.of_warps;
  const size_t base = size_t(block) * D;
  float squares = 0.0f;
  for (int c = threadIdx.x; c < D; c += kWarps * 32) squares += x[base + c] * x[base + c];
  const float factor = rsqrtf(block_sum(squares, scratch) / D + eps);
  for (int c = threadIdx.x; c < D; c += kWarps * 32)
    out[base + c] = In(x[base + c] * factor * float(weight[c]));
}

// sum over taps t of (base[plane, t] + delta[row, t]) * x[row - t], nothing before row 0.
// base (2, K, D); deltas of one plane (T, K, G), rows `stride` apart, one for D / G channels. Plus
// residual, where there is one.
template <typename In, typename Out>
__device__ __forceinline__ void convolve(
    const In* x, const In* deltas, const In* base, const float* residual, Out* out, int T, int D,
    int K, int G, int plane, int stride, int block) {
  const int i = block * kWarps * 32 + threadIdx.x;
  if (i >= T * D) return;
  const int row = i / D, channel = i % D, group = channel / (D / G);
  float sum = 0.0f;
  for (int t = 0; t < K && t <= row; ++t) {
    const float weight =
        float(base[(plane * K + t) * D + channel]) + float(deltas[row * stride + t * G + group]);
    sum += weight * float(x[(row - t) * D + channel]);
  }
  const float rounded = float(In(sum));
  out[i] = Out(residual ? residual[i] + rounded : rounded);
}

// A number and its place as one word: the larger number is the larger word, and of equal numbers the
// one that comes first. Zero is less than any.
template <typename In>
struct Key {
  using Word = unsigned long long;

  static __device__ __forceinline__ Word of(float number, int place) {
    const unsigned bits = __float_as_uint(number);
    return Word(bits ^ (bits >> 31 ? 0xFFFFFFFFu : 0x80000000u)) << 32 | ~unsigned(place);
  }
  static __device__ __forceinline__ float number(Word key) {
    const unsigned bits = unsigned(key >> 32);
    return __uint_as_float(bits ^ (bits >> 31 ? 0x80000000u : 0xFFFFFFFFu));
  }
  static __device__ __forceinline__ int place(Word key) { return int(~unsigned(key)); }
};

template <>
struct Key<bf16> {  // of places below 65,536
  using Word = unsigned;

  static __device__ __forceinline__ Word of(float number, int place) {
    const unsigned bits = __float_as_uint(number) >> 16;
    return (bits ^ (bits >> 15 ? 0xFFFFu : 0x8000u)) << 16 | (0xFFFFu - unsigned(place));
  }
  static __device__ __forceinline__ float number(Word key) {
    const unsigned bits = key >> 16;
    return __uint_as_float((bits ^ (bits >> 15 ? 0x8000u : 0xFFFFu)) << 16);
  }
  static __device__ __forceinline__ int place(Word key) { return int(0xFFFFu - (key & 0xFFFFu)); }
};

// Calls put(n, key) for a warp's TOP largest keys, largest first; zero where there are fewer.
template <int TOP, int PER, typename Word, typename Put>
__device__ __forceinline__ void each_of_top(Word (&keys)[PER], Put put) {
#pragma unroll 1
  for (int n = 0; n < TOP; ++n) {
    Word mine = keys[0];
#pragma unroll
    for (int i = 1; i < PER; ++i) mine = keys[i] > mine ? keys[i] : mine;
    const Word best = warp_max(mine);
    put(n, best);
#pragma unroll
    for (int i = 0; i < PER; ++i)
      if (keys[i] == best) keys[i] = 0;
  }
}

template <typename In, int TOP>
struct HeldBest {  // in shared memory
  typename Key<In>::Word of_warps[kWarps * TOP];
};

// The TOP largest of a block's share of a row, largest first, each thread holding PER numbers: those
// of every warp, and then of all warps. values, ids: (rows, parts, TOP). Where `given` is null a
// number's id is its column; else those of equal numbers go up with the column. A share has TOP
// numbers at least.
template <typename In, int TOP, int PER>
__device__ __forceinline__ void top(
    const In* numbers, const int* given, float* values, int* ids, int columns, int parts, int block,
    HeldBest<In, TOP>& held) {
  using Word = typename Key<In>::Word;
  const float lowest = -3.38e38f;  // in bfloat16 too
  const int row = block / parts, part = block % parts, lane = threadIdx.x % 32;
  const int first = part * (PER * kWarps * 32);
  const size_t base = size_t(row) * columns;
  Word keys[PER];
#pragma unroll
  for (int i = 0; i < PER; ++i) {
    const int place = i * kWarps * 32 + threadIdx.x;
    const bool live = first + place < columns;
    keys[i] = live ? Key<In>::of(fmaxf(float(numbers[base + first + place]), lowest), place) : 0;
  }
  Word* of_warp = held.of_warps + threadIdx.x / 32 * TOP;
  each_of_top<TOP>(keys, [&](int n, Word best) {
    if (lane == 0) of_warp[n] = best;
  });
  __syncthreads();
  if (threadIdx.x >= 32) return;
  constexpr int kEach = kWarps * TOP / 32;
  Word all[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) all[i] = held.of_warps[i * 32 + lane];
  const size_t to = (size_t(row) * parts + part) * TOP;
  each_of_top<TOP>(all, [&](int n, Word best) {
    if (lane != 0) return;
    const int column = first + Key<In>::place(best);
    values[to + n] = Key<In>::number(best);
    ids[to + n] = given ? given[base + column] : column;
  });
}

template <int TOP>
struct HeldPath {  // in shared memory
  float scores[TOP];
  int previous;
};

// Row by row, the candidate with the best unary + pairwise score given the row before; one block,
// a warp for every kWarps-th candidate. projected (T, R); codebooks (V, R); out (T).
template <typename In, int TOP>
__device__ __forceinline__ void walk(
    const float* unary, const int* candidates, const In* projected, const In* predecessors,
    const In* successors, const int* anchor, int* out, int T, int R, HeldPath<TOP>& held) {
  constexpr int kEach = TOP / kWarps;  // candidates of a warp
  float* scores = held.scores;
  int& previous = held.previous;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, lines = (R * int(sizeof(In)) + 127) / 128;
#pragma unroll 1
  for (int i = threadIdx.x; i < T * TOP * lines; i += kWarps * 32) {  // whatever may be looked up
    const size_t at = size_t(candidates[i / lines]) * R + i % lines * (128 / int(sizeof(In)));
    warm_line(successors + at);
    warm_line(predecessors + at);
  }
  if (threadIdx.x == 0) previous = anchor[0];
  __syncthreads();
  for (int row = 0; row < T; ++row) {
    const size_t from = size_t(previous) * R;
    size_t to[kEach];
    float sum[kEach];
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      to[n] = size_t(candidates[row * TOP + n * kWarps + warp]) * R;
      sum[n] = 0.0f;
    }
#pragma unroll 4
    for (int r = lane; r < R; r += 32) {
      const float wanted = float(projected[row * R + r]), before = float(predecessors[from + r]);
#pragma unroll
      for (int n = 0; n < kEach; ++n) {
        const float edge = float(In(wanted * float(successors[to[n] + r])));
        sum[n] += float(In(before * edge));
      }
    }
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) sum[n] += warp_xor(sum[n], mask);
      const int at = row * TOP + n * kWarps + warp;
      if (lane == 0) scores[n * kWarps + warp] = unary[at] + sum[n];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int best = 0;
      for (int n = 1; n < TOP; ++n)
        if (scores[n] > scores[best]) best = n;
      previous = candidates[row * TOP + best];
      out[row] = previous;
    }
    __syncthreads();
  }
}

}  // namespace dflash
