// A dynamic convolution in the same launch as the projection beside it. M rows; D channels in G
// groups of D / G; TAPS taps. base (2, TAPS, D); x and y bfloat16, the arithmetic that of `convolve`.

namespace dflash {

// The projection to deltas, and the convolution before a branch: a block has the deltas of 16
// groups for every tap of one plane, and convolves the channels of plane 0; plane 1 is written.
// mixed (M, D); later (M, TAPS, G).
template <int TAPS, int MT, int FACTORS>
struct HeldBefore {  // in shared memory
  Block<TAPS, MT> block;
  float factors[FACTORS];
  float deltas[MT * 8][TAPS][16];
};

template <int TAPS, int MT, typename Weights, typename Rows, typename Memory>
__device__ __forceinline__ void project_and_convolve(
    const Weights (&tiles)[TAPS], const Rows& rows, const bf16* base, bf16* mixed, bf16* later, int M,
    int D, int G, int plane, int first, bool measure, Memory& held) {
  auto& deltas = held.deltas;
  auto& block = held.block;
  Sums<TAPS, MT> sums;
  accumulate(sums, tiles, rows, M, D, measure);
  block.put(sums);
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < M * TAPS * 16; i += kWarps * 32) {
    const int row = i / (TAPS * 16), t = i / 16 % TAPS, g = i % 16;
    const bf16 delta = bf16(block.total(t * 16 + g, row));
    deltas[row][t][g] = float(delta);
    if (plane == 1) later[(size_t(row) * TAPS + t) * G + first + g] = delta;
  }
  if (plane == 1) return;
  __syncthreads();
  const int size = D / G, width = 16 * size;
#pragma unroll 1
  for (int i = threadIdx.x; i < M * width; i += kWarps * 32) {
    const int row = i / width, at = i % width, channel = first * size + at;
    float sum = 0.0f;
    for (int t = 0; t < TAPS && t <= row; ++t)
      sum += (float(base[t * D + channel]) + deltas[row][t][at / size]) *
          rows.number(row - t, channel, D);
    mixed[size_t(row) * D + channel] = bf16(sum);
  }
}

// The projection that ends a branch, the convolution after it, and the residual: out (M, N) =
// residual + conv(x w^T), in float32. deltas (M, TAPS, G) of plane 1, N channels.
template <int MT>
struct HeldAfter {  // in shared memory
  Block<1, MT> block;
  float y[MT * 8][16];
};

template <int TAPS, int MT, typename Weights, typename Rows>
__device__ __forceinline__ void convolve_and_add(
    const Weights (&tiles)[1], const Rows& rows, const bf16* deltas, const bf16* base,
    const float* residual, float* out, int M, int N, int K, int G, int first,
    bool measure, HeldAfter<MT>& held) {
  auto& block = held.block;
  auto& y = held.y;
  Sums<1, MT> sums;
  accumulate(sums, tiles, rows, M, K, measure);
  block.put(sums);
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < 16 * M; i += kWarps * 32)
    y[i / 16][i % 16] = float(bf16(block.total(i % 16, i / 16)));
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < 16 * M; i += kWarps * 32) {
    const int row = i / 16, channel = first + i % 16, group = channel / (N / G);
    float sum = 0.0f;
    for (int t = 0; t < TAPS && t <= row; ++t)
      sum += (float(base[(TAPS + t) * N + channel]) + float(deltas[(row * TAPS + t) * G + group])) *
          y[row - t][i % 16];
    const size_t at = size_t(row) * N + channel;
    out[at] = residual[at] + float(bf16(sum));
  }
}

}  // namespace dflash
