// Convolutions over channels-last data, and their gradients.
#include <algorithm>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "onednn.h"
#include "shares.h"

namespace emulator {
namespace {

namespace ffi = ::xla::ffi;

enum Part : int64_t { kForward = 0, kInputGradient = 1, kWeightGradient = 2 };

// Rows of the first spatial axis of some images: what one share works on.
struct Block {
  int64_t first_image, images;
  int64_t data_row, data_rows;      // of the convolution's data
  int64_t result_row, result_rows;  // of its result
  int64_t low, high;                // padding before and after the rows of the data
};

struct Window {
  Sizes stride, dilation, low, high;
};

dnnl::memory::desc channels_last(int64_t images, int64_t channels, const Sizes& spatial) {
  using tag = dnnl::memory::format_tag;
  static const tag tags[] = {tag::nwc, tag::nhwc, tag::ndhwc};
  Sizes dims{images, channels};
  dims.insert(dims.end(), spatial.begin(), spatial.end());
  return {dims, dnnl::memory::data_type::f32, tags[spatial.size() - 1]};
}

// One primitive and what it wants of its memory; equal blocks share it.
struct Kernel {
  dnnl::primitive primitive;
  dnnl::memory::desc data, weights, result, scratch;
};

// Some of the weights on their way between the two orders that they have.
struct Slice {
  dnnl::memory::desc from, to;
  dnnl::reorder copy, add;
};

// A convolution as it is made once, when XLA loads an executable.
struct Convolution {
  static ffi::TypeId id;

  Part part;
  int64_t groups;
  Sizes x, w, y;  // (N, ..., C), (O, C / groups, ...), (N, ..., O)
  Window window;
  std::vector<Block> blocks;
  std::vector<std::shared_ptr<Kernel>> kernels;  // of each block
  dnnl::memory::desc plain;                      // weights as they lie
  dnnl::memory::desc packed;                     // weights as the kernels want them
  std::vector<Slice> slices;                     // of the weights, from the one to the other
  size_t scratch = 0;                            // bytes for one share

  bool reordered() const { return plain != packed; }
  size_t packed_bytes() const { return whole_lines(packed.get_size()); }
  // Weights in the kernels' order: one, or for a gradient of weights one of each share.
  size_t copies() const {
    if (part == kWeightGradient && blocks.size() > 1) return blocks.size();
    return reordered() ? 1 : 0;
  }
  size_t wanted() const { return copies() * packed_bytes() + blocks.size() * scratch; }
};

ffi::TypeId Convolution::id = {};

Sizes spatial_of(const Sizes& shape) { return Sizes(shape.begin() + 1, shape.end() - 1); }

int64_t ceil_div(int64_t a, int64_t b) { return a >= 0 ? (a + b - 1) / b : -((-a) / b); }

// Rows [first, first + rows) of what is written, with the rows that they read.
Block block_of(const Convolution& c, int64_t image, int64_t images, int64_t first, int64_t rows) {
  const int64_t stride = c.window.stride[0], low = c.window.low[0];
  const int64_t reach = (c.window.dilation[0] + 1) * (c.w[2] - 1);
  const int64_t in = c.x[1], out = c.y[1];
  Block b{image, images, 0, in, 0, out, low, c.window.high[0]};
  if (c.part == kInputGradient) {
    b.data_row = first;
    b.data_rows = rows;
    const int64_t from = std::max<int64_t>(0, ceil_div(first + low - reach, stride));
    const int64_t to = std::min(out, (first + rows - 1 + low) / stride + 1);
    b.result_row = from;
    b.result_rows = to - from;
    b.low = low + first - from * stride;
    b.high = std::max<int64_t>(0, (to - from - 1) * stride + reach + 1 - b.low - rows);
    return b;
  }
  b.result_row = first;
  b.result_rows = rows;
  const int64_t start = first * stride - low;
  const int64_t stop = (first + rows - 1) * stride - low + reach + 1;
  b.data_row = std::max<int64_t>(start, 0);
  b.data_rows = std::min(stop, in) - b.data_row;
  b.low = b.data_row - start;
  b.high = std::max<int64_t>(0, stop - in);
  return b;
}

// Divides the images, or the rows of each where there are fewer images than threads.
std::vector<Block> divide(const Convolution& c, int64_t threads) {
  const int64_t images = c.x[0];
  const int64_t rows = c.part == kInputGradient ? c.x[1] : c.y[1];
  std::vector<Block> blocks;
  if (images >= threads || rows == 1) {
    const int64_t shares = std::min(images, threads);
    for (int64_t s = 0; s < shares; ++s) {
      const int64_t from = images * s / shares, to = images * (s + 1) / shares;
      Block whole = block_of(c, from, to - from, 0, rows);
      whole.data_row = whole.result_row = 0;
      whole.data_rows = c.x[1];
      whole.result_rows = c.y[1];
      whole.low = c.window.low[0];
      whole.high = c.window.high[0];
      blocks.push_back(whole);
    }
    return blocks;
  }
  const int64_t pieces = std::min(rows, ceil_div(threads, images));
  for (int64_t image = 0; image < images; ++image) {
    for (int64_t p = 0; p < pieces; ++p) {
      const int64_t from = rows * p / pieces, to = rows * (p + 1) / pieces;
      blocks.push_back(block_of(c, image, 1, from, to - from));
    }
  }
  return blocks;
}

dnnl::memory::desc weights_desc(const Convolution& c, bool any) {
  using tag = dnnl::memory::format_tag;
  static const tag plain[] = {tag::oiw, tag::oihw, tag::oidhw};
  static const tag grouped[] = {tag::goiw, tag::goihw, tag::goidhw};
  Sizes dims = c.w;
  const size_t axes = c.w.size() - 2;
  if (c.groups > 1) {
    dims[0] /= c.groups;
    dims.insert(dims.begin(), c.groups);
  }
  const tag order = any ? tag::any : (c.groups > 1 ? grouped : plain)[axes - 1];
  return {dims, dnnl::memory::data_type::f32, order};
}

// Kernels of one tap first gather the places that strides leave, and write whole vectors of channels
// there: beyond the end of their scratch memory, where the channels are not a multiple of a vector.
// oneDNN 3.2 then gives wrong gradients of weights, or overwrites what lies behind.
void refuse_gathered_tails(const Convolution& c, const std::string& implementation) {
  constexpr int64_t kLongestVector = 16;
  const Sizes& stride = c.window.stride;
  const bool gathers = implementation.rfind("jit_1x1", 0) == 0 &&
                       std::any_of(stride.begin(), stride.end(), [](int64_t s) { return s > 1; });
  if (gathers && c.w[1] % kLongestVector != 0) {
    throw std::runtime_error("oneDNN's kernel for it writes beyond its memory");
  }
}

// oneDNN 3.2 counts the bytes of an image with 32 bits: a gradient of weights then ends the process.
void refuse_large_images(const dnnl::memory::desc& data, const dnnl::memory::desc& result,
                         int64_t images) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const auto of_one = [&](const dnnl::memory::desc& all) {
    return static_cast<int64_t>(all.get_size()) / images;
  };
  if (std::max(of_one(data), of_one(result)) > kMost) {
    throw std::runtime_error("oneDNN has no kernel for images of so many bytes");
  }
}

std::shared_ptr<Kernel> make_kernel(const Convolution& c, const Block& b) {
  using namespace dnnl;
  Sizes data = spatial_of(c.x), result = spatial_of(c.y), low = c.window.low, high = c.window.high;
  data[0] = b.data_rows;
  result[0] = b.result_rows;
  low[0] = b.low;
  high[0] = b.high;
  const auto x = channels_last(b.images, c.x.back(), data);
  const auto y = channels_last(b.images, c.y.back(), result);
  refuse_large_images(x, y, b.images);
  const auto w = c.kernels.empty() ? weights_desc(c, true) : c.packed;
  const primitive_attr attr = attributes();
  const auto direct = algorithm::convolution_direct;
  const Window& v = c.window;
  auto kernel = std::make_shared<Kernel>();
  const auto fill = [&](const auto& pd, const memory::desc& weights) {
    const std::string implementation = pd.impl_info_str();
    refuse_plain_loops(implementation);
    refuse_gathered_tails(c, implementation);
    // As products, groups of one channel are as many products of one row.
    if (c.groups > 1 && c.w[1] == 1 && implementation.find("gemm") != std::string::npos) {
      throw std::runtime_error("oneDNN has no fast kernel for it");
    }
    kernel->data = x;
    kernel->result = y;
    kernel->weights = weights;
    kernel->scratch = pd.scratchpad_desc();
  };
  const convolution_forward::primitive_desc forward(
      engine(), prop_kind::forward_training, direct, x, c.part == kForward ? w : weights_desc(c, true), y,
      v.stride, v.dilation, low, high, attr);
  if (c.part == kForward) {
    fill(forward, forward.weights_desc());
    kernel->primitive = convolution_forward(forward);
  } else if (c.part == kInputGradient) {
    const convolution_backward_data::primitive_desc pd(engine(), direct, x, w, y, v.stride,
                                                       v.dilation, low, high, forward, attr);
    fill(pd, pd.weights_desc());
    kernel->primitive = convolution_backward_data(pd);
  } else {
    const convolution_backward_weights::primitive_desc pd(engine(), direct, x, w, y, v.stride,
                                                          v.dilation, low, high, forward, attr);
    fill(pd, pd.diff_weights_desc());
    kernel->primitive = convolution_backward_weights(pd);
  }
  return kernel;
}

constexpr int64_t kBlock = 64;               // no order of weights has larger blocks of features
constexpr size_t kLeastSliced = size_t{1} << 18;  // bytes of weights that are worth several threads

// Divides the weights by features, or by groups of them, where blocks of them do not overlap.
std::vector<Slice> slices_of(const dnnl::memory::desc& from, const dnnl::memory::desc& to,
                             int64_t threads) {
  const dnnl::primitive_attr plain = attributes();
  dnnl::primitive_attr adding = attributes();
  dnnl::post_ops sum;
  sum.append_sum();
  adding.set_post_ops(sum);
  const auto made = [](const dnnl::memory::desc& a, const dnnl::memory::desc& b,
                       const dnnl::primitive_attr& attr) {
    const dnnl::reorder::primitive_desc pd(engine(), a, engine(), b, attr);
    if (pd.scratchpad_desc().get_size() > 0) throw std::runtime_error("it has no scratch memory");
    return dnnl::reorder(pd);
  };
  const auto slice = [&](const dnnl::memory::desc& a, const dnnl::memory::desc& b) {
    return Slice{a, b, made(a, b, plain), made(a, b, adding)};
  };
  const Sizes dims = from.get_dims();
  const int64_t units = dims[0] / kBlock;
  const int64_t count = from.get_size() < kLeastSliced ? 1 : std::min(threads, units);
  try {
    std::vector<Slice> slices;
    for (int64_t s = 0; s < count; ++s) {
      const int64_t first = units * s / count * kBlock;
      const int64_t last = s + 1 == count ? dims[0] : units * (s + 1) / count * kBlock;
      Sizes part = dims, offset(dims.size(), 0);
      part[0] = last - first;
      offset[0] = first;
      slices.push_back(slice(from.submemory_desc(part, offset), to.submemory_desc(part, offset)));
    }
    if (count > 0) return slices;
  } catch (const dnnl::error&) {
    // An order that cannot be divided there.
  }
  return {slice(from, to)};
}

bool alike(const Block& a, const Block& b) {
  return a.images == b.images && a.data_rows == b.data_rows && a.result_rows == b.result_rows &&
         a.low == b.low && a.high == b.high;
}

std::unique_ptr<Convolution> make_convolution(int64_t part, int64_t groups, int64_t threads,
                                              const Sizes& x, const Sizes& w, const Sizes& y,
                                              Window window) {
  OneThread one;
  auto c = std::make_unique<Convolution>();
  c->part = static_cast<Part>(part);
  c->groups = groups;
  c->x = x;
  c->w = w;
  c->y = y;
  c->window = std::move(window);
  // oneDNN counts what lies between two taps, and knows no distance where there is one tap.
  for (size_t i = 0; i < c->window.dilation.size(); ++i) {
    int64_t& between = c->window.dilation[i];
    between = w[i + 2] == 1 ? 0 : between - 1;
  }
  c->blocks = divide(*c, threads);
  c->plain = weights_desc(*c, false);
  for (size_t i = 0; i < c->blocks.size(); ++i) {
    size_t same = 0;
    while (same < i && !alike(c->blocks[same], c->blocks[i])) ++same;
    if (same < i) {
      c->kernels.push_back(c->kernels[same]);
      continue;
    }
    auto kernel = make_kernel(*c, c->blocks[i]);
    if (i == 0) c->packed = kernel->weights;
    c->scratch = std::max(c->scratch, kernel->scratch.get_size());
    c->kernels.push_back(std::move(kernel));
  }
  c->scratch = whole_lines(c->scratch);
  if (c->copies() > 0) {
    const bool gradient = c->part == kWeightGradient;
    c->slices = slices_of(gradient ? c->packed : c->plain, gradient ? c->plain : c->packed, threads);
  }
  return c;
}

int64_t row_elements(const Sizes& shape) {
  int64_t n = 1;
  for (size_t i = 2; i < shape.size(); ++i) n *= shape[i];
  return n;
}

float* at(float* base, const Sizes& shape, int64_t image, int64_t row) {
  return base + (image * shape[1] + row) * row_elements(shape);
}

struct Buffers {
  float *x, *w, *y;
};

// Brings weights from one order into the other; several sources are added up.
void reorder(const Convolution& c, ffi::ThreadPool& pool, const std::vector<void*>& from, void* to) {
  run_shares(pool, static_cast<int64_t>(c.slices.size()), [&](int64_t share) {
    const Slice& slice = c.slices[share];
    const dnnl::memory target(slice.to, engine(), to);
    for (size_t i = 0; i < from.size(); ++i) {
      const dnnl::memory source(slice.from, engine(), from[i]);
      (i == 0 ? slice.copy : slice.add)
          .execute(stream(), {{DNNL_ARG_FROM, source}, {DNNL_ARG_TO, target}});
    }
  });
}

void run(const Convolution& c, const Buffers& buffers, ffi::ThreadPool& pool, char* scratch) {
  const size_t shares = c.blocks.size(), packed = c.packed_bytes(), copies = c.copies();
  const bool gradient = c.part == kWeightGradient;
  if (!gradient && copies > 0) reorder(c, pool, {buffers.w}, scratch);
  // The weights that a share works with: its own part of a gradient, else those of all.
  const auto weights = [&](size_t share) {
    void* const own = scratch + (gradient ? share * packed : 0);
    return copies == 0 ? dnnl::memory(c.plain, engine(), buffers.w)
                       : dnnl::memory(c.packed, engine(), own);
  };
  run_shares(pool, static_cast<int64_t>(shares), [&](int64_t share) {
    const Block& b = c.blocks[share];
    const Kernel& k = *c.kernels[share];
    const dnnl::memory x(k.data, engine(), at(buffers.x, c.x, b.first_image, b.data_row));
    const dnnl::memory y(k.result, engine(), at(buffers.y, c.y, b.first_image, b.result_row));
    const dnnl::memory pad(k.scratch, engine(), scratch + copies * packed + share * c.scratch);
    const dnnl::memory w = weights(share);
    std::unordered_map<int, dnnl::memory> arguments{{DNNL_ARG_SCRATCHPAD, pad}};
    if (c.part == kForward) {
      arguments.insert({{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y}});
    } else if (c.part == kInputGradient) {
      arguments.insert({{DNNL_ARG_DIFF_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DIFF_DST, y}});
    } else {
      arguments.insert({{DNNL_ARG_SRC, x}, {DNNL_ARG_DIFF_WEIGHTS, w}, {DNNL_ARG_DIFF_DST, y}});
    }
    k.primitive.execute(stream(), arguments);
  });
  if (gradient && copies > 0) {
    std::vector<void*> parts;
    for (size_t i = 0; i < copies; ++i) parts.push_back(scratch + i * packed);
    reorder(c, pool, parts, buffers.w);
  }
}

ffi::ErrorOr<std::unique_ptr<Convolution>> Instantiate(int64_t part, int64_t groups,
                                                       int64_t threads, Span x, Span w, Span y,
                                                       Span stride, Span dilation, Span low,
                                                       Span high, int64_t scratch) {
  try {
    return with_scratch(
        make_convolution(part, groups, threads, sizes(x), sizes(w), sizes(y),
                         Window{sizes(stride), sizes(dilation), sizes(low), sizes(high)}),
        scratch);
  } catch (const std::exception& error) {
    return ffi::Unexpected(ffi::Error::Internal(std::string("convolution: ") + error.what()));
  }
}

using Buffer = ffi::Buffer<ffi::F32>;

ffi::Error Execute(Convolution* c, ffi::ThreadPool pool, Buffer first, Buffer second,
                   ffi::ResultBuffer<ffi::F32> result, ffi::ResultBuffer<ffi::U8> scratch) {
  const Sizes& wanted_first = c->part == kInputGradient ? c->y : c->x;
  const Sizes& wanted_second = c->part == kWeightGradient ? c->y : c->w;
  const Sizes& wanted = c->part == kForward ? c->y : c->part == kInputGradient ? c->x : c->w;
  if (!same(first.dimensions(), wanted_first) || !same(second.dimensions(), wanted_second) ||
      !same(result->dimensions(), wanted)) {
    return ffi::Error::InvalidArgument("convolution: shapes are not those it was made for");
  }
  if (scratch->element_count() < c->wanted()) {
    return ffi::Error::InvalidArgument("convolution: its scratch memory is too small");
  }
  try {
    Buffers buffers{};
    switch (c->part) {
      case kForward:
        buffers = {first.typed_data(), second.typed_data(), result->typed_data()};
        break;
      case kInputGradient:
        buffers = {result->typed_data(), second.typed_data(), first.typed_data()};
        break;
      case kWeightGradient:
        buffers = {first.typed_data(), result->typed_data(), second.typed_data()};
        break;
    }
    run(*c, buffers, pool, reinterpret_cast<char*>(scratch->typed_data()));
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("convolution: ") + error.what());
  }
  return ffi::Error::Success();
}

}  // namespace

// What follows is what the library is loaded for.
#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(ConvolutionInstantiate, Instantiate,
                              ffi::Ffi::BindInstantiate()
                                  .Attr<int64_t>("part")
                                  .Attr<int64_t>("groups")
                                  .Attr<int64_t>("threads")
                                  .Attr<Span>("x")
                                  .Attr<Span>("w")
                                  .Attr<Span>("y")
                                  .Attr<Span>("stride")
                                  .Attr<Span>("dilation")
                                  .Attr<Span>("low")
                                  .Attr<Span>("high")
                                  .Attr<int64_t>("scratch"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(ConvolutionExecute, Execute,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::State<Convolution>>()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Buffer>()
                                  .Arg<Buffer>()
                                  .Ret<Buffer>()
                                  .Ret<ffi::Buffer<ffi::U8>>());

}  // namespace emulator

extern "C" XLA_FFI_TypeId* ConvolutionTypeId() { return &emulator::Convolution::id; }

extern "C" const XLA_FFI_TypeInfo* ConvolutionTypeInfo() {
  static const XLA_FFI_TypeInfo info = xla::ffi::MakeTypeInfo<emulator::Convolution>();
  return &info;
}

// Bytes of scratch memory that a convolution wants, -1 where oneDNN has no kernel for it.
extern "C" int64_t convolution_scratch(int64_t part, int64_t groups, int64_t threads, int64_t axes,
                                       const int64_t* x, const int64_t* w, const int64_t* y,
                                       const int64_t* stride, const int64_t* dilation,
                                       const int64_t* low, const int64_t* high) {
  using emulator::Sizes;
  const auto read = [](const int64_t* from, int64_t n) { return Sizes(from, from + n); };
  try {
    const auto c = emulator::make_convolution(
        part, groups, threads, read(x, axes + 2), read(w, axes + 2), read(y, axes + 2),
        {read(stride, axes), read(dilation, axes), read(low, axes), read(high, axes)});
    return static_cast<int64_t>(c->wanted());
  } catch (const std::exception&) {
    return -1;
  }
}

#pragma GCC visibility pop
