// Sums, fused copies and conversions of gradient buckets on a GPU; knows neither MPI nor Python.
// NVRTC compiles it where the GPU is. What it computes is plain C++, so that a C++ compiler with a few lines in front
// (tests/cuda_on_cpu.hpp) makes the same numbers of it without one. Kernels are made of the templates by HPCPIPE_ lines
// that device_kernels.py puts behind this text.

typedef unsigned short hpcpipe_u16;
typedef unsigned int hpcpipe_u32;
typedef unsigned long long hpcpipe_u64;

// Sums and conversions of floats that keep denormals, also where NVRTC is told to flush them to zero, as cupy tells it.
#ifdef __CUDA_ARCH__
static __device__ float added(float a, float b) {
  float sum;
  asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
  return sum;
}

static __device__ float narrowed(double value) {
  float result;
  asm("cvt.rn.f32.f64 %0, %1;" : "=f"(result) : "d"(value));
  return result;
}

static __device__ double widened(float value) {
  double result;
  asm("cvt.f64.f32 %0, %1;" : "=d"(result) : "f"(value));
  return result;
}
#else
static float added(float a, float b) { return a + b; }
static float narrowed(double value) { return static_cast<float>(value); }
static double widened(float value) { return value; }
#endif

static __device__ double added(double a, double b) { return a + b; }

// A number in the type that another one is summed in.
template <typename Sum>
struct As;

template <>
struct As<float> {
  static __device__ float of(float value) { return value; }
  static __device__ float of(double value) { return narrowed(value); }
};

template <>
struct As<double> {
  static __device__ double of(float value) { return widened(value); }
  static __device__ double of(double value) { return value; }
};

// How one number of each type becomes a float (or double) and back, to nearest even: as native/numbers.hpp does it.
struct Float32 {
  typedef float Stored;
  typedef float Sum;
  static __device__ Sum load(Stored stored) { return stored; }
  static __device__ Stored store(Sum sum) { return sum; }
};

struct Float64 {
  typedef double Stored;
  typedef double Sum;
  static __device__ Sum load(Stored stored) { return stored; }
  static __device__ Stored store(Sum sum) { return sum; }
};

struct BFloat16 {
  typedef hpcpipe_u16 Stored;
  typedef float Sum;
  static __device__ Sum load(Stored stored) { return __uint_as_float(static_cast<hpcpipe_u32>(stored) << 16); }
  static __device__ Stored store(Sum sum) {
    const hpcpipe_u32 bits = __float_as_uint(sum);
    const hpcpipe_u32 rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const hpcpipe_u32 quiet_nan = (bits >> 16) | 0x40U;
    return static_cast<Stored>((bits & 0x7fffffffU) > 0x7f800000U ? quiet_nan : rounded);
  }
};

struct Float16 {
  typedef hpcpipe_u16 Stored;
  typedef float Sum;

#ifdef __CUDA_ARCH__
  static __device__ Sum load(Stored stored) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(stored));
    return value;
  }

  static __device__ Stored store(Sum sum) {
    Stored stored;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(stored) : "f"(sum));
    return stored;
  }
#else
  static Sum load(Stored stored) { return hpcpipe_half_to_float(stored); }
  static Stored store(Sum sum) { return hpcpipe_float_to_half(sum); }
#endif
};

// 16 bytes, or less if the numbers beside them are larger: what a thread moves at once.
template <typename Stored, int count>
struct alignas(sizeof(Stored) * count) Vector {
  Stored at[count];
};

static __device__ bool aligned(const void* pointer, hpcpipe_u64 bytes) {
  return reinterpret_cast<hpcpipe_u64>(pointer) % bytes == 0;
}

static __device__ hpcpipe_u64 thread_of_grid() {
  return static_cast<hpcpipe_u64>(blockIdx.x) * blockDim.x + threadIdx.x;
}

static __device__ hpcpipe_u64 threads_of_grid() { return static_cast<hpcpipe_u64>(gridDim.x) * blockDim.x; }

// into[i] = a[i] + b[i]; `into` may be a or b. Two vectors of each are on their way at a time.
template <typename N>
static __device__ void add_two(void* into_at, const void* a_at, const void* b_at, hpcpipe_u64 length) {
  typedef typename N::Stored Stored;
  constexpr int count = 16 / sizeof(Stored);
  typedef Vector<Stored, count> Many;
  Stored* into = static_cast<Stored*>(into_at);
  const Stored* a = static_cast<const Stored*>(a_at);
  const Stored* b = static_cast<const Stored*>(b_at);
  const hpcpipe_u64 first = thread_of_grid(), stride = threads_of_grid();
  hpcpipe_u64 done = 0;
  if (aligned(into, 16) && aligned(a, 16) && aligned(b, 16)) {
    const hpcpipe_u64 vectors = length / count;
    Many* out = reinterpret_cast<Many*>(into);
    const Many* x = reinterpret_cast<const Many*>(a);
    const Many* y = reinterpret_cast<const Many*>(b);
    for (hpcpipe_u64 i = first; i < vectors; i += 2 * stride) {
      const bool second = i + stride < vectors;
      const hpcpipe_u64 j = second ? i + stride : i;
      const Many x0 = x[i], y0 = y[i], x1 = x[j], y1 = y[j];
      Many sum0, sum1;
#pragma unroll
      for (int k = 0; k < count; ++k) {
        sum0.at[k] = N::store(added(N::load(x0.at[k]), N::load(y0.at[k])));
        sum1.at[k] = N::store(added(N::load(x1.at[k]), N::load(y1.at[k])));
      }
      out[i] = sum0;
      if (second) out[j] = sum1;
    }
    done = vectors * count;
  }
  for (hpcpipe_u64 i = done + first; i < length; i += stride) into[i] = N::store(added(N::load(a[i]), N::load(b[i])));
}

#define HPCPIPE_MOST_SOURCES 256

struct Sources {
  hpcpipe_u64 at[HPCPIPE_MOST_SOURCES];
  hpcpipe_u64 count;
};

// into[i] = (sources[0][i] + sources[1][i]) + ..., rounded once; `into` may be one of the two or more sources.
template <typename N>
static __device__ void add_many(void* into_at, const Sources& sources, hpcpipe_u64 length) {
  typedef typename N::Stored Stored;
  typedef typename N::Sum Sum;
  constexpr int count = 16 / sizeof(Stored);
  typedef Vector<Stored, count> Many;
  Stored* into = static_cast<Stored*>(into_at);
  const hpcpipe_u64 first = thread_of_grid(), stride = threads_of_grid();
  hpcpipe_u64 done = 0;
  bool all_aligned = aligned(into, 16);
  for (hpcpipe_u64 s = 0; s < sources.count; ++s) all_aligned = all_aligned && sources.at[s] % 16 == 0;
  if (all_aligned) {
    const hpcpipe_u64 vectors = length / count;
    for (hpcpipe_u64 i = first; i < vectors; i += stride) {
      Sum sum[count];
      const Many start = reinterpret_cast<const Many*>(sources.at[0])[i];
#pragma unroll
      for (int k = 0; k < count; ++k) sum[k] = N::load(start.at[k]);
#pragma unroll 4
      for (hpcpipe_u64 s = 1; s < sources.count; ++s) {
        const Many next = reinterpret_cast<const Many*>(sources.at[s])[i];
#pragma unroll
        for (int k = 0; k < count; ++k) sum[k] = added(sum[k], N::load(next.at[k]));
      }
      Many result;
#pragma unroll
      for (int k = 0; k < count; ++k) result.at[k] = N::store(sum[k]);
      reinterpret_cast<Many*>(into)[i] = result;
    }
    done = vectors * count;
  }
  for (hpcpipe_u64 i = done + first; i < length; i += stride) {
    Sum sum = N::load(reinterpret_cast<const Stored*>(sources.at[0])[i]);
    for (hpcpipe_u64 s = 1; s < sources.count; ++s) {
      sum = added(sum, N::load(reinterpret_cast<const Stored*>(sources.at[s])[i]));
    }
    into[i] = N::store(sum);
  }
}

template <typename Into, typename From, bool adds>
static __device__ typename Into::Stored transferred(typename Into::Stored old, typename From::Stored from) {
  const typename Into::Sum value = As<typename Into::Sum>::of(From::load(from));
  return Into::store(adds ? added(Into::load(old), value) : value);
}

// One vector of numbers written, or added, to another.
template <typename Into, typename From, bool adds, typename ManyInto, typename ManyFrom>
static __device__ ManyInto transferred_many(const ManyInto& old, const ManyFrom& from) {
  ManyInto into;
#pragma unroll
  for (int k = 0; k < static_cast<int>(sizeof(from.at) / sizeof(from.at[0])); ++k) {
    into.at[k] = transferred<Into, From, adds>(old.at[k], from.at[k]);
  }
  return into;
}

// A block's threads write, or add, `length` numbers of one type to those of another: some until `into` is aligned, then
// vectors if `from` is aligned there too, of which each thread has several on their way at a time, then the rest.
template <typename Into, typename From, bool adds>
static __device__ void transfer(typename Into::Stored* into, const typename From::Stored* from, hpcpipe_u64 length) {
  typedef typename Into::Stored IntoStored;
  typedef typename From::Stored FromStored;
  constexpr int widest = sizeof(IntoStored) > sizeof(FromStored) ? sizeof(IntoStored) : sizeof(FromStored);
  constexpr int count = 16 / widest;
  constexpr int at_a_time = count == 8 ? 2 : 4;  // with 256 threads no more than a tile has
  typedef Vector<IntoStored, count> ManyInto;
  typedef Vector<FromStored, count> ManyFrom;
  const hpcpipe_u64 first = threadIdx.x, stride = blockDim.x;
  const hpcpipe_u64 beyond = reinterpret_cast<hpcpipe_u64>(into) / sizeof(IntoStored) % count;
  const hpcpipe_u64 wanted = beyond == 0 ? 0 : count - beyond;
  const hpcpipe_u64 head = wanted < length ? wanted : length;
  hpcpipe_u64 done = head;
  if (aligned(into + head, sizeof(ManyInto)) && aligned(from + head, sizeof(ManyFrom))) {
    const hpcpipe_u64 vectors = (length - head) / count;
    ManyInto* out = reinterpret_cast<ManyInto*>(into + head);
    const ManyFrom* in = reinterpret_cast<const ManyFrom*>(from + head);
    hpcpipe_u64 i = first;
    for (; i + (at_a_time - 1) * stride < vectors; i += at_a_time * stride) {
      ManyFrom values[at_a_time];
      ManyInto results[at_a_time];
#pragma unroll
      for (int k = 0; k < at_a_time; ++k) {
        values[k] = in[i + k * stride];
        results[k] = adds ? out[i + k * stride] : ManyInto();
      }
#pragma unroll
      for (int k = 0; k < at_a_time; ++k) {
        out[i + k * stride] = transferred_many<Into, From, adds>(results[k], values[k]);
      }
    }
    for (; i < vectors; i += stride) {
      const ManyFrom values = in[i];
      const ManyInto old = adds ? out[i] : ManyInto();
      out[i] = transferred_many<Into, From, adds>(old, values);
    }
    done = head + vectors * count;
  }
  for (hpcpipe_u64 i = first; i < head; i += stride) into[i] = transferred<Into, From, adds>(into[i], from[i]);
  for (hpcpipe_u64 i = done + first; i < length; i += stride) {
    into[i] = transferred<Into, From, adds>(into[i], from[i]);
  }
}

#define HPCPIPE_MOST_PARTS 200
#define HPCPIPE_TILE 4096

// Where the parts of a flat buffer lie, and from which element of it each begins; begin[count] is the end of the last.
struct Parts {
  hpcpipe_u64 at[HPCPIPE_MOST_PARTS];
  hpcpipe_u64 begin[HPCPIPE_MOST_PARTS + 1];
  hpcpipe_u64 count;
};

// Each block takes tiles of the flat buffer and moves, part by part, what lies in them.
template <typename Flat, typename Part, bool into_flat, bool adds>
static __device__ void move_parts(void* flat_at, const Parts& parts) {
  typedef typename Flat::Stored FlatStored;
  typedef typename Part::Stored PartStored;
  FlatStored* flat = static_cast<FlatStored*>(flat_at);
  const hpcpipe_u64 end = parts.begin[parts.count];
  for (hpcpipe_u64 tile = static_cast<hpcpipe_u64>(blockIdx.x) * HPCPIPE_TILE; tile < end;
       tile += static_cast<hpcpipe_u64>(gridDim.x) * HPCPIPE_TILE) {
    const hpcpipe_u64 tile_end = tile + HPCPIPE_TILE < end ? tile + HPCPIPE_TILE : end;
    hpcpipe_u64 low = 0, high = parts.count;  // the last part that begins at the tile or before it
    while (high - low > 1) {
      const hpcpipe_u64 middle = (low + high) / 2;
      if (parts.begin[middle] <= tile) {
        low = middle;
      } else {
        high = middle;
      }
    }
    for (hpcpipe_u64 at = tile; at < tile_end; ++low) {
      const hpcpipe_u64 stop = parts.begin[low + 1] < tile_end ? parts.begin[low + 1] : tile_end;
      if (stop <= at) continue;
      PartStored* part = reinterpret_cast<PartStored*>(parts.at[low]) + (at - parts.begin[low]);
      if constexpr (into_flat) {
        transfer<Flat, Part, adds>(flat + at, part, stop - at);
      } else {
        transfer<Part, Flat, adds>(part, flat + at, stop - at);
      }
      at = stop;
    }
  }
}

#define HPCPIPE_ADD_TWO(NAME, N)                                                                          \
  extern "C" __global__ void NAME(void* into, const void* a, const void* b, hpcpipe_u64 length) {         \
    add_two<N>(into, a, b, length);                                                                       \
  }

#define HPCPIPE_ADD_MANY(NAME, N)                                                                         \
  extern "C" __global__ void NAME(void* into, const Sources sources, hpcpipe_u64 length) {                \
    add_many<N>(into, sources, length);                                                                   \
  }

#define HPCPIPE_MOVE_PARTS(NAME, FLAT, PART, INTO_FLAT, ADDS)                                             \
  extern "C" __global__ void NAME(void* flat, const Parts parts) {                                        \
    move_parts<FLAT, PART, INTO_FLAT, ADDS>(flat, parts);                                                 \
  }
