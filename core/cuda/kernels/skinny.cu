// y = x w^T for at most 16 rows of x, every weight read once.
//
// x (M, K) as `rows.cu` has it; w (N, K) bfloat16, or 4-bit with a scale and a bias per GROUP weights.
// A block computes RT tiles of 16 outputs for MT tiles of 8 rows; its 8 warps share out k and are
// summed in a fixed order. The arithmetic of a row depends neither on its neighbours nor on M.
// Inside a step k is permuted alike for w and x, so that a thread reads 16 bytes in one piece.

namespace dflash {

template <int RT, int MT>
struct Sums {
  float c[RT][MT][4];

  __device__ __forceinline__ Sums() {
#pragma unroll
    for (int r = 0; r < RT; ++r)
#pragma unroll
      for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) c[r][m][i] = 0.0f;
  }
};

// The rows of a weight matrix that a tile's 16 outputs have: neighbours from its first on.
struct Neighbours {
  int last;  // of the 16; what lies behind it is read again and dropped

  __device__ __forceinline__ int count() const { return last + 1; }
  __device__ __forceinline__ int row(int output) const { return min(output, last); }
};

// A bfloat16 weight matrix, from a tile's first row on. DEPTH: steps of loads under way for one tile
// of outputs and rows.
template <int DEPTH, typename Which = Neighbours>
struct Dense : Which {
  const bf16* w;

  __device__ __forceinline__ void warm(int K, int most) const { warm_rows(w, *this, K * 2, most); }

  template <int RT, int MT, typename Rows>
  struct Stage {  // what one round of loads brings: U steps of 32 k
    static constexpr int U = DEPTH / (RT * MT) > 1 ? DEPTH / (RT * MT) : 1;
    static constexpr int kStep = 32;
    uint4 a[U][RT][2];
    Piece<typename Rows::In> b[U][MT];

    __device__ __forceinline__ void load(
        const Dense (&tiles)[RT], const Rows& rows, int M, int K, int first) {
      const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, steps = K / kStep;
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const int step = first + u * kWarps;
        const size_t k = size_t(step < steps ? step : first) * kStep + t * 8;
#pragma unroll
        for (int r = 0; r < RT; ++r)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            a[u][r][h] = load_once(tiles[r].w + size_t(tiles[r].row(g + 8 * h)) * K + k);
#pragma unroll
        for (int m = 0; m < MT; ++m)
          if (step < steps && m * 8 + g < M) b[u][m].load(rows.x + size_t(m * 8 + g) * K + k);
      }
    }

    __device__ __forceinline__ void add(
        Sums<RT, MT>& sums, const Rows& rows, int M, int K, int first) const {
      const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, steps = K / kStep;
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const int step = first + u * kWarps;
#pragma unroll
        for (int m = 0; m < MT; ++m) {
          const uint4 v = step < steps && m * 8 + g < M
              ? rows.fed(b[u][m], m * 8 + g, step * kStep + t * 8)
              : make_uint4(0, 0, 0, 0);
#pragma unroll
          for (int r = 0; r < RT; ++r) {
            const uint4 p = a[u][r][0], q = a[u][r][1];
            matrix_step(sums.c[r][m], p.x, q.x, p.y, q.y, v.x, v.y);
            matrix_step(sums.c[r][m], p.z, q.z, p.w, q.w, v.z, v.w);
          }
        }
      }
    }
  };
};

// A 4-bit weight matrix: eight k a word, lowest nibble first.
template <int GROUP, typename Which = Neighbours>
struct Quantized : Which {
  const unsigned* w;
  const bf16* scales;
  const bf16* biases;

  __device__ __forceinline__ void warm(int K, int most) const {
    warm_rows(w, *this, K / 2, most);
    warm_rows(scales, *this, K / GROUP * 2, most);
    warm_rows(biases, *this, K / GROUP * 2, most);
  }

  template <int RT, int MT, typename Rows>
  struct Stage {
    using In = typename Rows::In;
    static constexpr int U = RT > 1 ? 1 : 2;
    static constexpr int kStep = 128;
    static constexpr bool kAhead = MT == 1 && sizeof(In) == 2;  // registers are too few for more
    uint4 a[U][RT][2];
    bf16 scale[U][RT][2], bias[U][RT][2];
    Piece<In> b[kAhead ? U : 1];  // the first eight numbers of a row

    __device__ __forceinline__ void load(
        const Quantized (&tiles)[RT], const Rows& rows, int M, int K, int first) {
      const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, steps = K / kStep;
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const int step = first + u * kWarps;
        const int k = (step < steps ? step : first) * kStep + t * 32;
#pragma unroll
        for (int r = 0; r < RT; ++r)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const size_t row = tiles[r].row(g + 8 * h), group = row * (K / GROUP) + k / GROUP;
            a[u][r][h] = load_once(tiles[r].w + row * (K / 8) + k / 8);
            scale[u][r][h] = tiles[r].scales[group];
            bias[u][r][h] = tiles[r].biases[group];
          }
        if (kAhead && step < steps && g < M) b[kAhead ? u : 0].load(rows.x + size_t(g) * K + k);
      }
    }

    __device__ __forceinline__ void add(
        Sums<RT, MT>& sums, const Rows& rows, int M, int K, int first) const {
      const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, steps = K / kStep;
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const int step = first + u * kWarps;
        const size_t k = size_t(step) * kStep + t * 32;
        Piece<In> piece[MT];
#pragma unroll
        for (int m = 0; m < MT; ++m) {
          if (kAhead)
            piece[m] = b[kAhead ? u : 0];
          else if (step < steps && m * 8 + g < M)
            piece[m].load(rows.x + size_t(m * 8 + g) * K + k);
        }
#pragma unroll(MT > 1 ? 4 : 1)
        for (int j = 0; j < 4; ++j) {
          unsigned b[MT][4];
#pragma unroll
          for (int m = 0; m < MT; ++m) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (step < steps && m * 8 + g < M) {
              v = rows.fed(piece[m], m * 8 + g, int(k) + 8 * j);
              if (j < 3) piece[m].load(rows.x + size_t(m * 8 + g) * K + k + 8 * (j + 1));
            }
            b[m][0] = low_halves(v.x, v.z);
            b[m][1] = high_halves(v.x, v.z);
            b[m][2] = low_halves(v.y, v.w);
            b[m][3] = high_halves(v.y, v.w);
          }
#pragma unroll
          for (int r = 0; r < RT; ++r) {
            unsigned w[2][4];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              const uint4 four = a[u][r][h];
              const unsigned word = j == 0 ? four.x : j == 1 ? four.y : j == 2 ? four.z : four.w;
#pragma unroll
              for (int i = 0; i < 4; ++i)
                w[h][i] = dequantize(
                    word >> (4 * i), __bfloat162bfloat162(scale[u][r][h]),
                    __bfloat162bfloat162(bias[u][r][h]));
            }
#pragma unroll
            for (int m = 0; m < MT; ++m) {
              matrix_step(sums.c[r][m], w[0][0], w[1][0], w[0][1], w[1][1], b[m][0], b[m][1]);
              matrix_step(sums.c[r][m], w[0][2], w[1][2], w[0][3], w[1][3], b[m][2], b[m][3]);
            }
          }
        }
      }
    }
  };
};

// Have the beginnings of a block's weights on their way while it waits for other blocks: as much
// as the memory brings in that time.
template <int RT, typename Weights>
__device__ __forceinline__ void warm_tiles(const Weights (&tiles)[RT], int K) {
#pragma unroll
  for (int r = 0; r < RT; ++r) tiles[r].warm(K, 65536 / (16 * RT));
}

// This warp's share of k, the loads of the next round under way during the arithmetic of this one
// and those of the first while the rows are measured. Loops stay loops here: a step runs them a few
// times, and to fetch their code takes longer than to jump back.
template <int RT, int MT, typename Weights, typename Rows>
__device__ __forceinline__ void accumulate(
    Sums<RT, MT>& sums, const Weights (&tiles)[RT], const Rows& rows, int M, int K, bool measure) {
  using Stage = typename Weights::template Stage<RT, MT, Rows>;
  const int steps = K / Stage::kStep, stride = kWarps * Stage::U, warp = threadIdx.x / 32;
  Stage stage, next;
#pragma unroll 1
  for (int first = warp - stride; first < steps; first += stride) {
    if (first + stride < steps) next.load(tiles, rows, M, K, first + stride);
    if (first >= 0)
      stage.add(sums, rows, M, K, first);
    else if (measure)
      rows.measure(M, K);
    stage = next;
  }
}

// The warps' sums of a block, and their total in the order of the warps.
template <int RT, int MT>
struct Block {
  float part[kWarps][RT * 16][MT * 8];

  __device__ __forceinline__ void put(const Sums<RT, MT>& sums) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < RT; ++r)
#pragma unroll
      for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          part[warp][r * 16 + g + 8 * (i / 2)][m * 8 + 2 * t + i % 2] = sums.c[r][m][i];
  }

  __device__ __forceinline__ float total(int output, int row) const {
    float sum = part[0][output][row];
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) sum += part[warp][output][row];
    return sum;
  }
};

// What a projection keeps in shared memory: beside the sums, what its rows measured.
template <int RT, int MT, int FACTORS>
struct Held {
  Block<RT, MT> block;
  float factors[FACTORS];
};

// out (M, N) = x w^T, rounded, plus `residual` (M, N) where there is one: the outputs from `first` on,
// whose weights are in `tiles`.
template <int RT, int MT, typename Weights, typename Rows, typename Out>
__device__ __forceinline__ void project(
    const Weights (&tiles)[RT], const Rows& rows, const Out* residual, Out* out, int M, int N, int K,
    int first, bool measure, Block<RT, MT>& block) {
  Sums<RT, MT> sums;
  accumulate(sums, tiles, rows, M, K, measure);
  block.put(sums);
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < RT * 16 * M; i += kWarps * 32) {
    const int output = i % (RT * 16), row = i / (RT * 16);
    if (first + output >= N) continue;
    const size_t at = size_t(row) * N + first + output;
    const bf16 y = bf16(block.total(output, row));
    out[at] = residual ? Out(float(residual[at]) + float(y)) : Out(float(y));
  }
}

// out (M, N) = silu(x gate^T) * (x up^T), 16 outputs from `first` on, rounded where the separate
// operations round.
template <int MT, typename Weights, typename Rows>
__device__ __forceinline__ void gated(
    const Weights (&tiles)[2], const Rows& rows, bf16* out, int M, int N, int K, int first,
    bool measure, Block<2, MT>& block) {
  Sums<2, MT> sums;
  accumulate(sums, tiles, rows, M, K, measure);
  block.put(sums);
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < 16 * M; i += kWarps * 32) {
    const int output = i % 16, row = i / 16;
    if (first + output >= N) continue;
    const float gate = float(bf16(block.total(output, row)));
    const float up = float(bf16(block.total(16 + output, row)));
    const float sigmoid = float(bf16(1.0f / (1.0f + expf(-gate))));
    const float silu = float(bf16(gate * sigmoid));
    out[size_t(row) * N + first + output] = bf16(silu * up);
  }
}

}  // namespace dflash
