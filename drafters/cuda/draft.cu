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

struct Best {
  float value;
  int index;
};

// The larger value; of equal values the lower index.
__device__ __forceinline__ bool beats(const Best& a, const Best& b) {
  return a.value > b.value || (a.value == b.value && a.index < b.index);
}

__device__ __forceinline__ Best block_best(Best mine, Best* scratch) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    const Best other{warp_xor(mine.value, mask), warp_xor(mine.index, mask)};
    if (beats(other, mine)) mine = other;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = mine;
  __syncthreads();
  Best best = scratch[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i)
    if (beats(scratch[i], best)) best = scratch[i];
  return best;
}

template <int PER>
__device__ __forceinline__ Best largest(const float (&held)[PER], const int (&name)[PER]) {
  Best best{held[0], name[0]};
#pragma unroll
  for (int i = 1; i < PER; ++i) {
    const Best other{held[i], name[i]};
    if (beats(other, best)) best = other;
  }
  return best;
}

struct HeldBest {  // in shared memory
  Best of_warps[kWarps];
};

// The TOP largest of a block's share of a row, largest first, each thread holding PER numbers.
// values, ids: (rows, parts, TOP). Where `given` is null a number's id is its column.
template <typename In, int TOP, int PER>
__device__ __forceinline__ void top(
    const In* numbers, const int* given, float* values, int* ids, int columns, int parts, int block,
    HeldBest& held_best) {
  Best* scratch = held_best.of_warps;
  const float lowest = -3.4e38f;
  const int row = block / parts, part = block % parts;
  const int first = part * (PER * kWarps * 32) + threadIdx.x;
  const size_t base = size_t(row) * columns;
  float held[PER];
  int name[PER];
#pragma unroll
  for (int i = 0; i < PER; ++i) {
    const int column = first + i * kWarps * 32;
    const bool live = column < columns;
    held[i] = live ? fmaxf(float(numbers[base + column]), lowest) : -INFINITY;
    name[i] = live && given ? given[base + column] : column;
  }
  Best mine = largest(held, name);
#pragma unroll 1
  for (int n = 0; n < TOP; ++n) {
    const Best best = block_best(mine, scratch);
    if (mine.index == best.index) {  // its thread alone looks for its next
#pragma unroll
      for (int i = 0; i < PER; ++i)
        if (name[i] == best.index) held[i] = -INFINITY;
      mine = largest(held, name);
    }
    if (threadIdx.x == 0) {
      const size_t at = (size_t(row) * parts + part) * TOP + n;
      values[at] = best.value;
      ids[at] = best.index;
    }
  }
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
  float* scores = held.scores;
  int& previous = held.previous;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) previous = anchor[0];
  __syncthreads();
  for (int row = 0; row < T; ++row) {
    const size_t from = size_t(previous) * R;
#pragma unroll 1
    for (int n = warp; n < TOP; n += kWarps) {
      const size_t to = size_t(candidates[row * TOP + n]) * R;
      float sum = 0.0f;
#pragma unroll 2
      for (int r = lane; r < R; r += 32) {
        const float edge = float(In(float(projected[row * R + r]) * float(successors[to + r])));
        sum += float(In(float(predecessors[from + r]) * edge));
      }
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) sum += warp_xor(sum, mask);
      if (lane == 0) scores[n] = unary[row * TOP + n] + sum;
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
