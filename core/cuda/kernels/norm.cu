// out = rms_norm(x) * weight * silu(gate): one warp for one head of one row, D numbers.
// The norm is rounded to In, the gating is float32, as in mlx-lm.

namespace dflash {

template <typename In, int D>
__device__ __forceinline__ void gated_norm(
    const In* x, const In* weight, const In* gate, In* out, int count, float eps,
    int block) {
  const int lane = threadIdx.x % 32, index = block * kWarps + threadIdx.x / 32;
  if (index >= count) return;
  const size_t base = size_t(index) * D;
  float value[D / 32], squares = 0.0f;
#pragma unroll
  for (int i = 0; i < D / 32; ++i) {
    value[i] = float(x[base + lane + 32 * i]);
    squares += value[i] * value[i];
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) squares += warp_xor(squares, mask);
  const float factor = rsqrtf(squares / D + eps);
#pragma unroll
  for (int i = 0; i < D / 32; ++i) {
    const int at = lane + 32 * i;
    const float normed = float(In(value[i] * factor * float(weight[at])));
    const float z = float(gate[base + at]);
    out[base + at] = In(z * (1.0f / (1.0f + expf(-z))) * normed);
  }
}

}  // namespace dflash
