// One Gated DeltaNet layer between its projections: convolution, SiLU, L2 norms, gates and the
// delta rule, row after row. A block owns 32 value rows of one value head; a value row has 8 lanes,
// each with Dk / 8 numbers of the float32 state in registers.
//
// qkv (T, C) rows before the convolution, C = 2 Hk Dk + Hv Dv; window (KS - 1, C) the rows before
// them; taps (C, KS); a, b (T, Hv); a_log (Hv) float32; dt_bias (Hv); state (Hv, Dv, Dk) float32.
// Out: y (T, Hv, Dv); the state and the window after the last row, or with EVERY the state after
// each row (T, Hv, Dv, Dk) and all rows of the convolution's input (KS - 1 + T, C), so that a
// rollback is a number and no work: `window_at` and `state_at` say where in these the next pass
// begins.
// Rounds to In where mlx-lm's separate operations round. Row t depends on rows up to t alone, in
// an order that does not know T: T rows are bitwise T calls of one row.

namespace dflash {

template <typename In>
__device__ __forceinline__ float rounded(float value) {
  return float(In(value));
}

template <typename In>
__device__ __forceinline__ float sigmoid(float value) {
  return rounded<In>(1.0f / (1.0f + expf(-value)));
}

template <int Dk, int Chunk>
struct Rows {
  float q[Chunk][Dk], k[Chunk][Dk], v[Chunk][32], y[Chunk][32], decay[Chunk], beta[Chunk];
};

template <typename In, int Hk, int Hv, int Dk, int Dv, int KS, bool EVERY>
struct Layer {
  static constexpr int kChunk = 16;
  static constexpr int kKeyDim = Hk * Dk;
  static constexpr int C = 2 * Hk * Dk + Hv * Dv;
  static constexpr int kParts = Dv / 32;
  static constexpr int kLoads = Dk / 32;  // float4 a lane

  const In* qkv;
  const In* window;
  const In* taps;
  int T;

  // What comes before the next row where the first `keep` rows of a block were kept.
  static __device__ __forceinline__ size_t window_at(int keep) { return size_t(keep) * C; }
  static __device__ __forceinline__ size_t state_at(int keep) {
    return keep > 0 ? size_t(keep - 1) * Hv * Dv * Dk : 0;
  }

  // Row `row` of the convolution's input: the window's rows are -(KS - 1) .. -1.
  __device__ __forceinline__ float input(int row, int channel) const {
    return row < 0 ? float(window[(row + KS - 1) * C + channel])
                   : float(qkv[size_t(row) * C + channel]);
  }

  __device__ __forceinline__ float convolved(int row, int channel) const {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < KS; ++j)
      sum += float(taps[channel * KS + j]) * input(row + j - (KS - 1), channel);
    sum = rounded<In>(sum);
    return rounded<In>(sum * sigmoid<In>(sum));
  }

  // x / rms(x), times `scale`: one warp for one vector of Dk.
  static __device__ __forceinline__ void normalize(float* x, float scale) {
    const int lane = threadIdx.x % 32;
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < Dk / 32; ++i) squares += x[lane + 32 * i] * x[lane + 32 * i];
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) squares += warp_xor(squares, mask);
    const float factor = rsqrtf(squares / Dk + 1e-6f / Dk);
#pragma unroll
    for (int i = 0; i < Dk / 32; ++i)
      x[lane + 32 * i] = rounded<In>(rounded<In>(x[lane + 32 * i] * factor) * scale);
  }

  __device__ __forceinline__ void run(
      const In* a, const In* b, const float* a_log, const In* dt_bias, const float* state_in,
      In* y, float* states, In* windows, int block, Rows<Dk, kChunk>& rows) const {
    const int head = block / kParts, part = block % kParts;
    const int key_head = head / (Hv / Hk);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int value_row = warp * 4 + lane / 8, piece = lane % 8;
    const size_t base = ((size_t(head) * Dv + part * 32 + value_row) * Dk) + piece * 4;
    const float rate = expf(a_log[head]);
    const float key_scale = rounded<In>(1.0f / sqrtf(float(Dk))), query_scale = 1.0f / Dk;

    float s[kLoads][4];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const float4 four = *reinterpret_cast<const float4*>(state_in + base + 32 * i);
      s[i][0] = four.x, s[i][1] = four.y, s[i][2] = four.z, s[i][3] = four.w;
    }
    keep_window(windows, head, part, key_head);

#pragma unroll 1
    for (int start = 0; start < T; start += kChunk) {
      const int count = T - start < kChunk ? T - start : kChunk;
      constexpr int kWide = 2 * Dk + 32;  // channels that this block convolves
#pragma unroll 1
      for (int i = threadIdx.x; i < count * kWide; i += kWarps * 32) {
        const int r = i / kWide, c = i % kWide;
        if (c < Dk)
          rows.q[r][c] = convolved(start + r, key_head * Dk + c);
        else if (c < 2 * Dk)
          rows.k[r][c - Dk] = convolved(start + r, kKeyDim + key_head * Dk + c - Dk);
        else
          rows.v[r][c - 2 * Dk] =
              convolved(start + r, 2 * kKeyDim + head * Dv + part * 32 + c - 2 * Dk);
      }
      if (threadIdx.x < count) {
        const size_t at = size_t(start + threadIdx.x) * Hv + head;
        const float x = rounded<In>(float(a[at]) + float(dt_bias[head]));
        const float softplus = rounded<In>(fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))));
        rows.decay[threadIdx.x] = expf(-rate * softplus);
        rows.beta[threadIdx.x] = sigmoid<In>(float(b[at]));
      }
      __syncthreads();
#pragma unroll 1
      for (int i = warp; i < 2 * count; i += kWarps) {
        if (i < count)
          normalize(rows.q[i], query_scale);
        else
          normalize(rows.k[i - count], key_scale);
      }
      __syncthreads();
#pragma unroll 1
      for (int r = 0; r < count; ++r) {
        const float out = step(rows, r, s, rows.v[r][value_row], piece);
        if (piece == 0) rows.y[r][value_row] = out;
        if (EVERY) keep_state(states + size_t(start + r) * Hv * Dv * Dk + base, s);
      }
      __syncthreads();
#pragma unroll 1
      for (int i = threadIdx.x; i < count * 32; i += kWarps * 32)
        y[(size_t(start + i / 32) * Hv + head) * Dv + part * 32 + i % 32] =
            In(rows.y[i / 32][i % 32]);
    }
    if (!EVERY) keep_state(states + base, s);
  }

  static __device__ __forceinline__ void keep_state(float* out, const float (&s)[kLoads][4]) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      *reinterpret_cast<float4*>(out + 32 * i) = make_float4(s[i][0], s[i][1], s[i][2], s[i][3]);
  }

  // The delta rule for one value row: decay, read with k, correct towards v, read with q.
  static __device__ __forceinline__ float step(
      const Rows<Dk, kChunk>& rows, int r, float (&s)[kLoads][4], float value, int piece) {
    float k[kLoads][4], remembered = 0.0f, out = 0.0f;
    const float decay = rows.decay[r];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const float4 four = *reinterpret_cast<const float4*>(&rows.k[r][32 * i + piece * 4]);
      k[i][0] = four.x, k[i][1] = four.y, k[i][2] = four.z, k[i][3] = four.w;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s[i][j] *= decay;
        remembered += s[i][j] * k[i][j];
      }
    }
#pragma unroll
    for (int mask = 4; mask > 0; mask /= 2) remembered += warp_xor(remembered, mask);
    const float delta = (value - remembered) * rows.beta[r];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const float4 q = *reinterpret_cast<const float4*>(&rows.q[r][32 * i + piece * 4]);
#pragma unroll
      for (int j = 0; j < 4; ++j) s[i][j] += k[i][j] * delta;
      out += s[i][0] * q.x;
      out += s[i][1] * q.y;
      out += s[i][2] * q.z;
      out += s[i][3] * q.w;
    }
#pragma unroll
    for (int mask = 4; mask > 0; mask /= 2) out += warp_xor(out, mask);
    return out;
  }

  // The last KS - 1 rows, or with EVERY all that were fed behind those before them: value channels
  // by their own block, key channels by one block a key head.
  __device__ __forceinline__ void keep_window(In* out, int head, int part, int key_head) const {
    const bool leads = part == 0 && head % (Hv / Hk) == 0;
    const int wide = leads ? 2 * Dk + 32 : 32;
    const int first = EVERY ? 0 : T, count = T + KS - 1 - first;
#pragma unroll 1
    for (int i = threadIdx.x; i < count * wide; i += kWarps * 32) {
      const int r = i / wide, c = i % wide;
      const int channel = c < 32 ? 2 * kKeyDim + head * Dv + part * 32 + c
          : c < 32 + Dk          ? key_head * Dk + c - 32
                                 : kKeyDim + key_head * Dk + c - 32 - Dk;
      out[size_t(r) * C + channel] = In(input(first + r - (KS - 1), channel));
    }
  }
};

}  // namespace dflash
