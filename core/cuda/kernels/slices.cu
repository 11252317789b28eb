// Sums over k that blocks share: each block has a slice of k, and the last one to be done with an
// item adds up the slices, in their order.
//
// A block writes its part of an item, counts it an item later, when the write is long over, and looks
// another item later whether it was the last: so nobody waits for the memory but at the end.

namespace dflash {

template <int SLICES, int R>
struct Slices {
  static constexpr int kThreads = kWarps * 32;
  float* partial;    // (items, SLICES, R, kThreads)
  unsigned* counts;  // (items); 0 before and after a launch
  int& done;         // in shared memory, of this half of a block
  int slice, number;
  int written = -1, counted = -1;  // items that this half has still to do with, and how many were
  unsigned before = 0;             // done with the second of them

  __device__ __forceinline__ Slices(
      float* partial, unsigned* counts, int& done, int slice, int number)
      : partial(partial), counts(counts), done(done), slice(slice), number(number) {}

  // One more item, or -1 for none. mine: whether the thread has an output of it; finish(item,
  // output, row, sums) is called for an item whose slices are all there.
  template <typename Finish>
  __device__ __forceinline__ void put(
      int item, bool mine, const float (&y)[R], const Finish& finish) {
    const int thread = threadIdx.x % kThreads;
    if (thread == 0) done = counted >= 0 && before == SLICES - 1;
    half_sync(number);  // also: what the half wrote last is on its way for all of it
    if (done) {
      if (mine) add(counted, thread, finish);
      if (thread == 0) counts[counted] = 0;
    }
    if (thread == 0 && written >= 0) {
      __threadfence();  // it is seen before it is counted
      before = atomicAdd(counts + written, 1);
    }
    half_sync(number);
    counted = written;
    written = item;
    if (item >= 0 && mine) {
#pragma unroll
      for (int r = 0; r < R; ++r)
        partial[((size_t(item) * SLICES + slice) * R + r) * kThreads + thread] = y[r];
    }
  }

  template <typename Finish>
  __device__ __forceinline__ void end(bool mine, const Finish& finish) {
    const float none[R] = {};
    put(-1, mine, none, finish);
    put(-1, mine, none, finish);
  }

  template <typename Finish>
  __device__ __forceinline__ void add(int item, int thread, const Finish& finish) const {
    __threadfence();
    float sum[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float all[SLICES];
#pragma unroll
      for (int i = 0; i < SLICES; ++i)
        all[i] = load_fresh(partial + ((size_t(item) * SLICES + i) * R + r) * kThreads + thread);
      sum[r] = all[0];
#pragma unroll
      for (int i = 1; i < SLICES; ++i) sum[r] += all[i];
    }
    finish(item, thread % 16, thread / 16, sum);
  }
};

}  // namespace dflash
