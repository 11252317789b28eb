// Attention of a few rows over one cache, for grouped heads.
//
// Keys are cut into tiles of 128 from position 0 on. A row's sum over a tile uses the keys that it
// may see alone, in a fixed order, and its tiles are added in order: a row depends neither on the
// other rows of the block nor on how many keys lie behind it.

namespace dflash {

constexpr int kTile = 128;

// Rows of a norm and a rotation in one warp: D numbers in place, lane-strided.
template <typename In, int D, int ROPE>
__device__ __noinline__ void norm_and_rotate(
    const In* x, const In* weight, In* out, int position, float eps, float log2_base) {
  const int lane = threadIdx.x % 32;
  float value[D / 32], squares = 0.0f;
#pragma unroll
  for (int i = 0; i < D / 32; ++i) {
    value[i] = float(x[lane + 32 * i]);
    squares += value[i] * value[i];
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) squares += warp_xor(squares, mask);
  const float factor = rsqrtf(squares / D + eps);
#pragma unroll
  for (int i = 0; i < D / 32; ++i)
    value[i] = float(In(value[i] * factor * float(weight[lane + 32 * i])));
  // Pairs are ROPE / 2 apart, so that both halves of a pair are in one lane where that is a
  // multiple of 32, and ROPE / 2 lanes away where it is less.
  constexpr int kHalf = ROPE / 2;
#pragma unroll
  for (int i = 0; i < D / 32; ++i) {
    const int c = lane + 32 * i;
    float other = 0.0f;
    if (kHalf < 32) other = warp_xor(value[i], kHalf);
    if (c < ROPE) {
      const int pair = c % kHalf;
      const float angle = float(position) * exp2f(-float(pair) / kHalf * log2_base);
      const float sine = sinf(angle), cosine = cosf(angle);
      if (kHalf >= 32) other = value[c < kHalf ? i + kHalf / 32 : i - kHalf / 32];
      out[c] = In(c < kHalf ? value[i] * cosine - other * sine : value[i] * cosine + other * sine);
    } else {
      out[c] = In(value[i]);
    }
  }
}

// q (T, H, S) of which the first D of every S are queries; k, v (T, Hk, D). Out: (H, T, D) and twice
// (Hk, T, D); values are only put in that order. k_weight (Hk / each, D): key heads of several layers.
template <typename In, int D, int ROPE>
__device__ __forceinline__ void prepare(
    const In* q, const In* k, const In* v, const In* q_weight, const In* k_weight, In* q_out,
    In* k_out, In* v_out, int T, int H, int S, int Hk, int each, int position, float q_eps,
    float k_eps, float log2_base, int block) {
  const int index = block * kWarps + threadIdx.x / 32;
  const int head = index % (H + 2 * Hk), t = index / (H + 2 * Hk), key_head = head - H;
  if (t >= T) return;
  if (head < H) {
    norm_and_rotate<In, D, ROPE>(
        q + (size_t(t) * H + head) * S, q_weight, q_out + (size_t(head) * T + t) * D, position + t,
        q_eps, log2_base);
  } else if (key_head < Hk) {
    norm_and_rotate<In, D, ROPE>(
        k + (size_t(t) * Hk + key_head) * D, k_weight + key_head / each * D,
        k_out + (size_t(key_head) * T + t) * D, position + t, k_eps, log2_base);
  } else {
    const int value_head = key_head - Hk;
    for (int i = threadIdx.x % 32; i < D; i += 32)
      v_out[(size_t(value_head) * T + t) * D + i] = v[(size_t(t) * Hk + value_head) * D + i];
  }
}

// One tile of keys for one key head and all its query rows: R >= G * T rows, a multiple of 8.
template <typename In, int D, int R>
struct Tile {
  static constexpr int kRowStride = R + 4;

  struct Held {  // in shared memory
    alignas(16) float p[kTile * kRowStride];
  };

  // Rows of one tile: those before `split` in the cache, the others in the block's own array.
  struct Keys {
    const In* cache;
    const In* block;
    int start, split;

    __device__ __forceinline__ const In* row(int j) const {
      const int at = start + j;
      return at < split ? cache + size_t(at) * D : block + size_t(at - split) * D;
    }
  };

  // q (1, H, T, D); k and v (1, Hk, capacity, D), of which `context` rows from `first` on count,
  // and the block's own T behind them: there too, or in k_block and v_block (1, Hk, T, D).
  // sums (Hk * tiles, R, D), peaks and weights (Hk * tiles, R).
  static __device__ __forceinline__ void run(
      const In* q, const In* k, const In* v, const In* k_block, const In* v_block, float* sums,
      float* peaks, float* weights, int Hk, int capacity, int H, int T, int tiles, int first,
      int context, float scale, bool causal, int window, int block, Held& memory) {
    float* p = memory.p;
    const int head = block / tiles, tile = block % tiles, start = tile * kTile;
    const int groups = H / Hk, live = groups * T, n = context + T;
    const int count = n - start < kTile ? n - start : kTile;
    if (count <= 0) {  // behind the last key
#pragma unroll 1
      for (int row = threadIdx.x; row < live; row += kWarps * 32) {
        peaks[size_t(block) * R + row] = -INFINITY;
        weights[size_t(block) * R + row] = 0.0f;
      }
      return;
    }
    const int split = k_block == nullptr ? n : context;  // keys that stand in k and v
    const Keys keys{
        k + (size_t(head) * capacity + first) * D, k_block + size_t(head) * T * D, start, split};
    const Keys held{
        v + (size_t(head) * capacity + first) * D, v_block + size_t(head) * T * D, start, split};
    scores(q + size_t(head) * groups * T * D, keys, p, live, count);
    __syncthreads();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 1
    for (int row = warp; row < live; row += kWarps) {
      const int at = context + row % T;
      float value[kTile / 32], peak = -INFINITY, sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kTile / 32; ++i) {
        const int j = lane + 32 * i, key = start + j;
        const bool hidden = j >= count || (causal && key > at) ||
            (window > 0 && key < context && at - key >= window);
        value[i] = hidden ? -INFINITY : p[j * kRowStride + row] * scale;
        peak = fmaxf(peak, value[i]);
      }
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) peak = fmaxf(peak, warp_xor(peak, mask));
#pragma unroll
      for (int i = 0; i < kTile / 32; ++i) {
        const float e = value[i] == -INFINITY ? 0.0f : expf(value[i] - peak);
        p[(lane + 32 * i) * kRowStride + row] = e;
        sum += e;
      }
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) sum += warp_xor(sum, mask);
      if (lane == 0) {
        peaks[size_t(block) * R + row] = peak;
        weights[size_t(block) * R + row] = sum;
      }
    }
    __syncthreads();
    values(held, p, sums + size_t(block) * R * D, live, count);
  }

  // p[key][row] = k . q: a warp for 16 keys, all rows.
  static __device__ __forceinline__ void scores(
      const In* q, const Keys& keys, float* p, int live, int count) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    if (warp * 16 >= count) return;
    float c[R / 8][4];
#pragma unroll
    for (int m = 0; m < R / 8; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[m][i] = 0.0f;
    const uint4 zero = make_uint4(0, 0, 0, 0);
#pragma unroll 2
    for (int step = 0; step < D / 32; ++step) {
      const int at = step * 32 + t * 8;
      uint4 a[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int key = warp * 16 + g + 8 * h;
        a[h] = key < count ? load_shared_line(keys.row(key) + at) : zero;
      }
#pragma unroll
      for (int m = 0; m < R / 8; ++m) {
        const int row = m * 8 + g;
        const uint4 b = row < live ? load_shared_line(q + size_t(row) * D + at) : zero;
        matrix_step(c[m], a[0].x, a[1].x, a[0].y, a[1].y, b.x, b.y);
        matrix_step(c[m], a[0].z, a[1].z, a[0].w, a[1].w, b.z, b.w);
      }
    }
#pragma unroll
    for (int m = 0; m < R / 8; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        p[(warp * 16 + g + 8 * (i / 2)) * kRowStride + m * 8 + 2 * t + i % 2] = c[m][i];
  }

  // out[row][d] = sum over keys of p[key][row] * v[key][d]; 4 rows at a time a thread.
  static __device__ __forceinline__ void values(
      const Keys& held, const float* p, float* out, int live, int count) {
    constexpr int kShares = kWarps * 32 / D;  // threads that share out the rows of one column
    constexpr int kRows = R / kShares < 4 ? 4 : R / kShares;
    const int d = threadIdx.x % D, first = (threadIdx.x / D) * kRows;
    if (first >= live) return;
    float sum[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum[r] = 0.0f;
    const int behind = held.split - held.start, inside = count < behind ? count : behind;
#pragma unroll 8
    for (int j = 0; j < inside; ++j)
      add<kRows>(sum, p + j * kRowStride + first, float(held.row(j)[d]));
#pragma unroll 8
    for (int j = inside > 0 ? inside : 0; j < count; ++j)
      add<kRows>(sum, p + j * kRowStride + first, float(held.row(j)[d]));
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (first + r < live) out[size_t(first + r) * D + d] = sum[r];
  }

  template <int kRows>
  static __device__ __forceinline__ void add(float (&sum)[kRows], const float* p, float value) {
#pragma unroll
    for (int r = 0; r < kRows; r += 4) {
      const float4 four = *reinterpret_cast<const float4*>(p + r);
      sum[r] += four.x * value;
      sum[r + 1] += four.y * value;
      sum[r + 2] += four.z * value;
      sum[r + 3] += four.w * value;
    }
  }
};

// sums (Hk, tiles, R, D) -> out (T, H, D): a block of D threads' worth of columns a row.
// gate (T, H, S): the last D of every S, its sigmoid rounded to In.
template <typename In, int D>
__device__ __forceinline__ void combine(
    const float* sums, const float* peaks, const float* weights, const In* gate, In* out, int Hk,
    int tiles, int R, int T, int H, int S, int block) {
  const int index = block * (kWarps * 32 / D) + threadIdx.x / D, d = threadIdx.x % D;
  if (index >= T * H) return;
  const int t = index / H, head = index % H, groups = H / Hk;
  const int row = (head % groups) * T + t;
  const size_t from = size_t(head / groups) * tiles * R + row;
  float peak = -INFINITY, sum = 0.0f, total = 0.0f;
#pragma unroll 1
  for (int i = 0; i < tiles; ++i) peak = fmaxf(peak, peaks[from + size_t(i) * R]);
#pragma unroll 2
  for (int i = 0; i < tiles; ++i) {
    const size_t at = from + size_t(i) * R;
    const float weight = weights[at];
    if (weight == 0.0f) continue;
    const float share = expf(peaks[at] - peak);
    total += share * weight;
    sum += share * sums[at * D + d];
  }
  const float attended = float(In(sum / total));
  float result = attended;
  if (gate) {
    const float z = float(gate[(size_t(t) * H + head) * S + S - D + d]);
    result = attended * float(In(1.0f / (1.0f + expf(-z))));
  }
  out[(size_t(t) * H + head) * D + d] = In(result);
}

}  // namespace dflash
