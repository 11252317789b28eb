// Attention of a few rows over one cache, for grouped heads.
//
// Keys are cut into tiles of 128 from position 0 on. A row's sum over a tile uses the keys that it
// may see alone, in a fixed order, and its tiles are added in order: a row depends neither on the
// other rows of the block nor on how many keys lie behind it.

namespace dflash {

constexpr int kTile = 128;

// Rows of a norm and a rotation in one warp: D numbers in place, lane-strided.
template <typename In, int D, int ROPE>
__device__ __forceinline__ void norm_and_rotate(
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

// q (T, H, S) of which the first D of every S are queries; k (T, Hk, D). Out: (H, T, D), (Hk, T, D).
template <typename In, int D, int ROPE>
__device__ __forceinline__ void prepare(
    const In* q, const In* k, const In* q_weight, const In* k_weight, In* q_out, In* k_out, int T,
    int H, int S, int Hk, int position, float q_eps, float k_eps, float log2_base) {
  const int index = blockIdx.x * kWarps + threadIdx.x / 32;
  const int head = index % (H + Hk), t = index / (H + Hk);
  if (t >= T) return;
  if (head < H)
    norm_and_rotate<In, D, ROPE>(
        q + (size_t(t) * H + head) * S, q_weight, q_out + (size_t(head) * T + t) * D, position + t,
        q_eps, log2_base);
  else
    norm_and_rotate<In, D, ROPE>(
        k + (size_t(t) * Hk + head - H) * D, k_weight, k_out + (size_t(head - H) * T + t) * D,
        position + t, k_eps, log2_base);
}

// One tile of keys for one key head and all its query rows: R >= G * T rows, a multiple of 8.
template <typename In, int D, int R>
struct Tile {
  static constexpr int kRowStride = R + 4;

  // q (1, H, T, D), k and v (1, Hk, n, D) with any strides but 1 for the last.
  // sums (Hk * tiles, R, D), peaks and weights (Hk * tiles, R).
  template <typename Strides>
  static __device__ __forceinline__ void run(
      const In* q, const In* k, const In* v, float* sums, float* peaks, float* weights, int Hk,
      int n, int T, const Strides& qs, const Strides& ks, const Strides& vs, int scale_bits,
      int causal, int window, int H) {
    __shared__ float p[kTile * kRowStride];
    const int tiles = (n + kTile - 1) / kTile;
    const int head = blockIdx.x / tiles, tile = blockIdx.x % tiles, start = tile * kTile;
    const int groups = H / Hk, live = groups * T, context = n - T;
    const int count = n - start < kTile ? n - start : kTile;
    const float scale = __int_as_float(scale_bits);
    q += size_t(head) * groups * qs[1];
    k += size_t(head) * ks[1] + size_t(start) * ks[2];
    v += size_t(head) * vs[1] + size_t(start) * vs[2];
    scores(q, k, p, live, count, T, qs[1], qs[2], ks[2]);
    __syncthreads();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
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
        peaks[size_t(blockIdx.x) * R + row] = peak;
        weights[size_t(blockIdx.x) * R + row] = sum;
      }
    }
    __syncthreads();
    values(v, p, sums + size_t(blockIdx.x) * R * D, live, count, vs[2]);
  }

  // p[key][row] = k . q: a warp for 16 keys, all rows.
  static __device__ __forceinline__ void scores(
      const In* q, const In* k, float* p, int live, int count, int T, size_t head_stride,
      size_t row_stride, size_t key_stride) {
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
        a[h] = key < count ? load_once(k + key * key_stride + at) : zero;
      }
#pragma unroll
      for (int m = 0; m < R / 8; ++m) {
        const int row = m * 8 + g;
        const uint4 b = row < live
            ? load_shared_line(q + (row / T) * head_stride + (row % T) * row_stride + at)
            : zero;
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
      const In* v, const float* p, float* out, int live, int count, size_t key_stride) {
    constexpr int kShares = kWarps * 32 / D;  // threads that share out the rows of one column
    constexpr int kRows = R / kShares < 4 ? 4 : R / kShares;
    const int d = threadIdx.x % D, first = (threadIdx.x / D) * kRows;
    if (first >= live) return;
    float sum[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum[r] = 0.0f;
#pragma unroll 4
    for (int j = 0; j < count; ++j) {
      const float value = float(v[j * key_stride + d]);
#pragma unroll
      for (int r = 0; r < kRows; r += 4) {
        const float4 four = *reinterpret_cast<const float4*>(p + j * kRowStride + first + r);
        sum[r] += four.x * value;
        sum[r + 1] += four.y * value;
        sum[r + 2] += four.z * value;
        sum[r + 3] += four.w * value;
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (first + r < live) out[size_t(first + r) * D + d] = sum[r];
  }
};

// sums (Hk, tiles, R, D) -> out (T, H, D): a block of D threads' worth of columns a row.
// gate (T, H, S): the last D of every S, its sigmoid rounded to In.
template <typename In, int D>
__device__ __forceinline__ void combine(
    const float* sums, const float* peaks, const float* weights, const In* gate, In* out, int Hk,
    int tiles, int R, int T, int H, int S) {
  const int index = blockIdx.x * (kWarps * 32 / D) + threadIdx.x / D, d = threadIdx.x % D;
  if (index >= T * H) return;
  const int t = index / H, head = index % H, groups = H / Hk;
  const int row = (head % groups) * T + t;
  const size_t from = size_t(head / groups) * tiles * R + row;
  float peak = -INFINITY, sum = 0.0f, total = 0.0f;
  for (int i = 0; i < tiles; ++i) peak = fmaxf(peak, peaks[from + size_t(i) * R]);
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
