// y = x w^T for at most 16 rows of x and 4-bit weights, limited by the memory that the weights are in.
//
// A block holds a slice of k of the rows in shared memory, in the order that the matrix instruction
// wants its columns, and the sums of every group of them. Its halves of 8 warps each have a list of
// items, R tiles of 16 outputs; a warp has its pieces of 128 k of every tile. It copies those of the
// next tile into shared memory while it works on those of this one. Four bits become the bfloat16
// number 128 + q by one bit operation; the group's sum of x takes the 128 back, and scale and bias
// are applied to the float32 sum of a group. So no weight is rounded.
//
// An output's sum has one order, whatever the rows beside it and the blocks of the launch: the
// pieces of a warp, the warps, the slices.

namespace dflash {

// 16 outputs of a weight matrix: the arrays from the first of them on.
struct FourBits {
  const unsigned* w;  // (N, K / 8), lowest nibble first
  const bf16* scales;  // (N, K / GROUP)
  const bf16* biases;
  int last;  // of the 16; what lies behind it is read again and dropped
};

constexpr int kPiece = 128;  // k of a warp's step
constexpr int kHalf = kWarps * 32;  // threads of a half

template <int GROUP, int MT, int K, int SLICES, int R, int HALVES, int FACTORS>
struct Narrow {
  static constexpr int kSlice = K / SLICES;
  static constexpr int kPieces = kSlice / kPiece;
  static constexpr int kSteps = (kPieces + kWarps - 1) / kWarps;
  static constexpr int kGroups = kPiece / GROUP;          // of a piece
  static constexpr int kScaleBytes = kSlice / GROUP * 2;  // of a row
  static constexpr int kRowBytes = K / GROUP * 2;
  static constexpr int kCopyBytes = kScaleBytes % 16 == 0 && kRowBytes % 16 == 0 ? 16
      : kScaleBytes % 8 == 0 && kRowBytes % 8 == 0                               ? 8
                                                                                 : 4;
  static constexpr int kCopies = kScaleBytes / kCopyBytes;
  static constexpr int kLine = (kScaleBytes + 15) / 16 % 2 ? (kScaleBytes + 15) / 16 * 4
                                                           : (kScaleBytes + 15) / 16 * 4 + 4;
  static_assert(K % (SLICES * kPiece) == 0 && kScaleBytes % 4 == 0, "whole pieces and words");

  struct Half {
    uint4 ring[kWarps][kSteps][64];
    alignas(16) unsigned scales[2][2][16][kLine];  // the eight rows of a quarter in other banks
    float part[kWarps][16][MT * 8];
    int done;
  };
  struct Held {
    uint4 x[MT][kSlice / 64][2][32];
    Half half[HALVES];
    float sums[MT][kSlice / GROUP][8];
    float factors[FACTORS];
  };

  static __device__ __forceinline__ int warp() { return threadIdx.x / 32 % kWarps; }
  static __device__ __forceinline__ bool has(int step) {  // whether this warp has a piece there
    return (step + 1) * kWarps <= kPieces || step * kWarps + warp() < kPieces;
  }

  // What is copied next: the tile behind the one that is worked on.
  template <typename At>
  struct Copies {
    const At& at;
    Half& half;
    int tile, end, slice;
    uint4* to[2];  // a lane's lines of the ring's first step
    const unsigned* from[2];

    __device__ __forceinline__ Copies(const At& at, Half& half, int tile, int end, int slice)
        : at(at), half(half), tile(tile), end(end), slice(slice) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int lane = threadIdx.x % 32, row = 8 * i + lane / 4;
        to[i] = &half.ring[warp()][0][row * 4 + (lane % 4 ^ (row / 2 % 4))];
      }
    }

    // The scales, and where the weights are.
    __device__ __forceinline__ void begin() {
      if (tile == end) return;
      const FourBits next = at(tile);
      const int lane = threadIdx.x % 32, k = slice * kSlice;
#pragma unroll
      for (int i = 0; i < 2; ++i)
        from[i] = next.w + size_t(min(8 * i + lane / 4, next.last)) * (K / 8) +
            (k + warp() * kPiece) / 8 + lane % 4 * 4;
#pragma unroll
      for (int first = 0; first < 32 * kCopies; first += kHalf) {
        const int i = first + threadIdx.x % kHalf;
        const int part = i % kCopies, row = i / kCopies % 16, which = i / kCopies / 16;
        if (first + kHalf > 32 * kCopies && i >= 32 * kCopies) continue;
        const bf16* rows = which ? next.biases : next.scales;
        copy_async<kCopyBytes>(
            reinterpret_cast<char*>(half.scales[tile % 2][which][row]) + part * kCopyBytes,
            rows + size_t(min(row, next.last)) * (K / GROUP) + k / GROUP + part * kCopyBytes / 2);
      }
    }

    __device__ __forceinline__ void issue(int step) const {
      if (tile < end && has(step)) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          copy_async<16>(to[i] + step * 64, from[i] + step * (kWarps * kPiece / 8));
      }
      end_copies();
    }

    // Until the first step of the tile behind is there, and its scales.
    __device__ __forceinline__ void wait() const { wait_copies<kSteps - 1>(); }
  };

  // The rows of a slice into shared memory, eight numbers a thread, and the sums of their groups.
  template <typename Rows>
  static __device__ __forceinline__ void stage(Held& held, const Rows& rows, int M, int slice) {
    constexpr int kEights = kSlice / 8, kBatch = 4, kStride = HALVES * kHalf;
    const int lane = threadIdx.x % 32, count = M * kEights;
#pragma unroll 1
    for (int first = threadIdx.x; first - lane < count; first += kBatch * kStride) {
      Piece<typename Rows::In> pieces[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int at = min(first + i * kStride, count - 1);
        pieces[i].load(rows.x + size_t(at / kEights) * K + slice * kSlice + at % kEights * 8);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first - lane + i * kStride >= count) break;
        const int at = min(first + i * kStride, count - 1), row = at / kEights;
        const int k = at % kEights * 8;
        const uint4 v = rows.fed(pieces[i], row, slice * kSlice + k);
        float sum = sum_of_eight(v);
#pragma unroll
        for (int mask = 1; mask < GROUP / 8; mask *= 2) sum += warp_xor(sum, mask);
        if (first + i * kStride >= count) continue;
        held.x[row / 8][k / 64][k / 32 % 2][row % 8 * 4 + k / 8 % 4] = make_uint4(
            low_halves(v.x, v.z), high_halves(v.x, v.z), low_halves(v.y, v.w),
            high_halves(v.y, v.w));
        if (k % GROUP == 0) held.sums[row / 8][k / GROUP][row % 8] = sum;
      }
    }
  }

  // A warp's piece: 16 outputs, 128 k, all rows.
  static __device__ __forceinline__ void add(
      const Held& held, const Half& half, float (&total)[MT][4], int step, int which) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, piece = step * kWarps + warp();
    const unsigned* ring = reinterpret_cast<const unsigned*>(half.ring[warp()][step]);
    unsigned words[2][4];
#pragma unroll
    for (int c = 0; c < 4; ++c)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        words[h][c] = ring[(g + 8 * h) * 16 + (c ^ (g / 2 % 4)) * 4 + t];
    float sum[MT][kGroups][4] = {};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int c = n / 2 + n % 2 * 2;  // chunks of 32 k, so that neighbours add to other sums
      unsigned w[2][4];
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < 4; ++i) w[h][i] = nibble_pair(words[h][c] >> (4 * i));
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        const uint4 x = held.x[m][piece * 2 + c / 2][c % 2][lane];
        float(&to)[4] = sum[m][c * 32 / GROUP];
        matrix_step(to, w[0][0], w[1][0], w[0][1], w[1][1], x.x, x.y);
        matrix_step(to, w[0][2], w[1][2], w[0][3], w[1][3], x.z, x.w);
      }
    }
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const int word = kGroups > 1 ? piece * (kGroups / 2) + j / 2 : piece / 2;
      const bool high = kGroups > 1 ? j % 2 : piece % 2;
      float scale[2], bias[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const unsigned a = half.scales[which][0][g + 8 * h][word];
        const unsigned b = half.scales[which][1][g + 8 * h][word];
        scale[h] = high ? high_number(a) : low_number(a);
        bias[h] = fmaf(-128.0f, scale[h], high ? high_number(b) : low_number(b));
      }
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        const float* sums = &held.sums[m][piece * kGroups + j][2 * t];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          total[m][i] = fmaf(
              bias[i / 2], sums[i % 2], fmaf(scale[i / 2], sum[m][j][i], total[m][i]));
      }
    }
  }

  // The tile that is there, and the copies of the one behind it: its sum for this thread's output
  // and row, of all warps of the half.
  template <typename At>
  static __device__ __forceinline__ float tile(
      const Held& held, Half& half, Copies<At>& copies, int number, int M) {
    const int which = copies.tile++ % 2, lane = threadIdx.x % 32;
    float total[MT][4] = {};
    copies.begin();
#pragma unroll 1  // what a launch costs the host grows with its code
    for (int step = 0; step < kSteps; ++step) {
      copies.wait();
      warp_sync();
      if (has(step)) add(held, half, total, step, which);
      warp_sync();
      copies.issue(step);
    }
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        half.part[warp()][lane / 4 + 8 * (i / 2)][m * 8 + 2 * (lane % 4) + i % 2] = total[m][i];
    copies.wait();
    half_sync(number);
    const int output = threadIdx.x % 16, row = threadIdx.x % kHalf / 16;
    float y = 0.0f;
    if (row < M) {
      y = half.part[0][output][row];
#pragma unroll
      for (int i = 1; i < kWarps; ++i) y += half.part[i][output][row];
    }
    half_sync(number);
    return y;
  }

  // A half's list of items: at(tile) is where its weights are, finish(item, output, row, y) what
  // becomes of the R sums of one output and row. partial, counts: as `Slices` has them.
  template <typename Rows, typename At, typename Finish>
  static __device__ __forceinline__ void run(
      Held& held, const Rows& rows, int M, int items, int block, int blocks, float* partial,
      unsigned* counts, const At& at, const Finish& finish) {
    const int number = threadIdx.x / kHalf, row = threadIdx.x % kHalf / 16;
    const int lists = blocks / SLICES * HALVES, list = block / SLICES * HALVES + number;
    const int end = items * (list + 1) / lists, output = threadIdx.x % 16;
    int item = items * list / lists;
    Half& half = held.half[number];
    Copies<At> copies(at, half, item * R, end * R, block % SLICES);
    copies.begin();
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) copies.issue(step);
    rows.template measure_all<HALVES * kWarps>(M, K);
    stage(held, rows, M, block % SLICES);
    copies.wait();
    __syncthreads();
    Slices<SLICES, R> slices{partial, counts, half.done, block % SLICES, number};
#pragma unroll 1
    for (; item < end; ++item) {
      float y[R];
#pragma unroll 1
      for (int r = 0; r < R; ++r) {
        const float sum = tile(held, half, copies, number, M);
        if (r == 0) y[0] = sum;
        if (r == R - 1) y[R - 1] = sum;
      }
      if (SLICES > 1)
        slices.put(item, row < M, y, finish);
      else if (row < M)
        finish(item, output, row, y);
    }
    if (SLICES > 1) slices.end(row < M, finish);
  }
};

}  // namespace dflash
