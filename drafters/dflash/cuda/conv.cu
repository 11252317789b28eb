// A dynamic convolution in the same launch as the projection beside it. M rows; D channels in G
// groups of D / G; TAPS taps. base (2, TAPS, D); x and y bfloat16, the arithmetic that of `convolve`.

namespace dflash {

// SIZE neighbouring groups, for every tap of both planes: the outputs of one tile of the projection
// to deltas, in this order. Planes and taps stand `apart` rows.
template <int TAPS>
struct Deltas {
  static constexpr int PARTS = 2 * TAPS, SIZE = 16 / PARTS;
  int apart;

  __device__ __forceinline__ int count() const { return PARTS * SIZE; }
  __device__ __forceinline__ int row(int output) const {
    return min(output / SIZE, PARTS - 1) * apart + output % SIZE;
  }
};

// The projection to deltas, and the convolution before a branch: a block has SIZE groups, convolves
// their channels with plane 0 and leaves plane 1 for later. mixed (M, D); later (M, TAPS, G).
template <int TAPS, int MT, int FACTORS>
struct HeldBefore {  // in shared memory
  Block<1, MT> block;
  float factors[FACTORS];
  float deltas[MT * 8][TAPS][Deltas<TAPS>::SIZE];
};

template <int TAPS, int MT, typename Weights, typename Rows, typename Memory>
__device__ __forceinline__ void project_and_convolve(
    const Weights (&tiles)[1], const Rows& rows, const bf16* base, bf16* mixed, bf16* later, int M,
    int D, int G, int first, bool measure, Memory& held) {
  constexpr int SIZE = Deltas<TAPS>::SIZE, OUTPUTS = 2 * TAPS * SIZE;
  auto& deltas = held.deltas;
  auto& block = held.block;
  Sums<1, MT> sums;
  accumulate(sums, tiles, rows, M, D, measure);
  block.put(sums);
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < M * OUTPUTS; i += kWarps * 32) {
    const int row = i / OUTPUTS, output = i % OUTPUTS, t = output / SIZE, g = output % SIZE;
    const bf16 delta = bf16(block.total(output, row));
    if (t < TAPS)
      deltas[row][t][g] = float(delta);
    else
      later[(size_t(row) * TAPS + t - TAPS) * G + first + g] = delta;
  }
  __syncthreads();
  const int size = D / G, width = SIZE * size;
#pragma unroll 2
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
