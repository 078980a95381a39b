// Recurrent layers over all their steps, in one direction, and their gradients.
//
// A thread has rows of the batch for itself, so none waits for another between two steps. Each call
// puts the weight once into the order in which the product of a step reads it.
#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "cells.h"
#include "onednn.h"
#include "shares.h"

namespace emulator {
namespace {

namespace ffi = ::xla::ffi;
using Type = dnnl::memory::data_type;

enum Cell : int64_t { kLstm = 0, kGru = 1, kTanh = 2, kRelu = 3 };
enum Part : int64_t { kForward = 0, kGradient = 1 };

// Rows of the batch: what one share works on.
struct Rows {
  int64_t first, count;
};

// The product of a step: of the state and the weight, or of the gates' gradients and the weight.
struct Multiplication {
  dnnl::matmul primitive;
  dnnl::memory::desc source, weight, result, scratch;
};

// A recurrent layer as it is made once, when XLA loads an executable.
struct Recurrence {
  static ffi::TypeId id;

  Cell cell;
  Part part;
  int64_t steps, batch, width;
  bool reverse;
  bool narrow;  // whether the weight, and what it is multiplied with, are bfloat16
  bool keeps;   // whether what the gradient reads is kept of every step
  std::vector<Rows> shares;
  std::vector<std::shared_ptr<Multiplication>> products;  // of each share
  dnnl::memory::desc plain;                               // the weight as it lies
  dnnl::memory::desc packed;                              // the weight as products want it
  dnnl::reorder pack;
  dnnl::memory::desc packing;  // scratch memory for that
  size_t pad = 0;              // bytes of a share's scratch memory for the primitive

  int64_t gates() const { return width * (cell == kLstm ? 4 : cell == kGru ? 3 : 1); }
  int64_t inner() const { return part == kForward ? width : gates(); }
  int64_t outer() const { return part == kForward ? gates() : width; }
  // Whether the product of a step is added to what lies where it is written.
  bool adds() const { return part == kForward ? cell != kGru : cell == kGru; }
  bool reordered() const { return plain != packed; }
  size_t packed_bytes() const { return reordered() ? whole_lines(packed.get_size()) : 0; }
  int64_t most_rows() const { return shares.back().count; }
  // Factors that are rounded, and the product of a GRU's step, which is not added to anything.
  size_t factor_bytes() const { return narrow ? whole_lines(2 * most_rows() * inner()) : 0; }
  size_t product_bytes() const {
    return part == kForward && cell == kGru ? whole_lines(4 * most_rows() * gates()) : 0;
  }
  size_t share_bytes() const { return pad + factor_bytes() + product_bytes(); }
  // The weight is packed before the shares begin, in their scratch memory.
  size_t wanted() const {
    const size_t pack_bytes = reordered() ? packing.get_size() : 0;
    return packed_bytes() + std::max(shares.size() * share_bytes(), pack_bytes);
  }
  int64_t time(int64_t step) const {
    return reverse == (part == kForward) ? steps - 1 - step : step;
  }
};

ffi::TypeId Recurrence::id = {};

std::shared_ptr<Multiplication> make_product(const Recurrence& r, int64_t rows,
                                             const dnnl::memory::desc& weight) {
  auto product = std::make_shared<Multiplication>();
  const Type type = r.narrow ? Type::bf16 : Type::f32;
  product->source = {{rows, r.inner()}, type, Sizes{r.inner(), 1}};
  product->result = {{rows, r.outer()}, Type::f32, Sizes{r.outer(), 1}};
  dnnl::primitive_attr attr = attributes();
  if (r.adds()) {
    dnnl::post_ops sum;
    sum.append_sum();
    attr.set_post_ops(sum);
  }
  const dnnl::matmul::primitive_desc pd(engine(), product->source, weight, product->result, attr);
  const std::string implementation = pd.impl_info_str();
  refuse_plain_loops(implementation);
  refuse_odd_pairs(implementation, r.narrow, r.inner());
  // Only products of blocks read a packed weight as it lies; others would copy it at each step.
  if (weight.get_format_kind() == dnnl::memory::format_kind::any &&
      implementation.rfind("brg", 0) != 0) {
    return make_product(r, rows, r.plain);
  }
  product->weight = pd.weights_desc();
  product->primitive = dnnl::matmul(pd);
  product->scratch = pd.scratchpad_desc();
  return product;
}

std::unique_ptr<Recurrence> make_recurrence(const Sizes& shape, int64_t cell, int64_t part,
                                            bool reverse, bool narrow, bool keeps,
                                            int64_t threads) {
  OneThread one;
  auto r = std::make_unique<Recurrence>();
  r->cell = static_cast<Cell>(cell);
  r->part = static_cast<Part>(part);
  r->steps = shape.at(0);
  r->batch = shape.at(1);
  r->width = shape.at(2);
  r->reverse = reverse;
  r->narrow = narrow;
  r->keeps = keeps;
  const int64_t count = std::max<int64_t>(1, std::min(threads, r->batch));
  for (int64_t s = 0; s < count; ++s) {
    const int64_t from = r->batch * s / count, to = r->batch * (s + 1) / count;
    r->shares.push_back({from, to - from});
  }
  const Type type = narrow ? Type::bf16 : Type::f32;
  const Sizes strides = r->part == kForward ? Sizes{1, r->width} : Sizes{r->width, 1};
  const Sizes sizes{r->inner(), r->outer()};
  r->plain = {sizes, type, strides};
  // The last share has the most rows; the others take the weight in the order that it asks for.
  const auto last =
      make_product(*r, r->most_rows(), {sizes, type, dnnl::memory::format_tag::any});
  r->packed = last->weight;
  for (const Rows& rows : r->shares) {
    r->products.push_back(rows.count == r->most_rows() ? last
                                                       : make_product(*r, rows.count, r->packed));
    r->pad = std::max(r->pad, whole_lines(r->products.back()->scratch.get_size()));
  }
  if (r->reordered()) {
    const dnnl::reorder::primitive_desc pd(engine(), r->plain, engine(), r->packed, attributes());
    r->pack = dnnl::reorder(pd);
    r->packing = pd.scratchpad_desc();
  }
  return r;
}

// A share's product, with its memory: only the addresses of factor and result change.
class Product {
 public:
  Product(const Recurrence& r, int64_t share, void* weight, char* memory)
      : narrow_(r.narrow),
        count_(r.shares[share].count * r.inner()),
        kernel_(*r.products[share]),
        factor_(reinterpret_cast<uint16_t*>(memory + r.pad)),
        product_(reinterpret_cast<float*>(memory + r.pad + r.factor_bytes())),
        source_(kernel_.source, engine(), nullptr),
        result_(kernel_.result, engine(), nullptr),
        arguments_{{DNNL_ARG_SRC, source_},
                   {DNNL_ARG_WEIGHTS, {kernel_.weight, engine(), weight}},
                   {DNNL_ARG_DST, result_},
                   {DNNL_ARG_SCRATCHPAD, {kernel_.scratch, engine(), memory}}} {}

  // Memory for a product that is not added to anything.
  float* own() { return product_; }

  void run(const float* factor, float* result) {
    if (narrow_) round_row(count_, factor, factor_);
    source_.set_data_handle(narrow_ ? static_cast<void*>(factor_) : const_cast<float*>(factor));
    result_.set_data_handle(result);
    kernel_.primitive.execute(stream(), arguments_);
  }

 private:
  const bool narrow_;
  const int64_t count_;
  const Multiplication& kernel_;
  uint16_t* const factor_;
  float* const product_;
  dnnl::memory source_, result_;
  const std::unordered_map<int, dnnl::memory> arguments_;
};

// The arrays of a call, in the order of its operands and of its results.
struct Arrays {
  std::vector<char*> operands, results;

  const float* operand(size_t i) const { return reinterpret_cast<const float*>(operands[i]); }
  float* result(size_t i) const { return reinterpret_cast<float*>(results[i]); }
};

// How many elements operands and results have, and which result takes the memory of an operand.
struct Signature {
  Sizes operands, results;
  std::vector<std::pair<size_t, size_t>> in_place;  // (operand, result)
};

constexpr size_t kWeight = 1;  // the operand that it is in every call

// Operands: sums of the gates so far, weight, bias, first h, and c of an LSTM. Results: gates, then
// for LSTM and GRU the states h and what else is kept.
// Of a gradient: gates (of a simple cell h), weight, what was kept, the first state that is read,
// cotangents of the outputs and of the last state. Results: gradients of the gates, of a GRU's
// recurrent gates, of the first state.
Signature signature_of(const Recurrence& r) {
  const int64_t state = r.batch * r.width, over_time = r.steps * state;
  const int64_t gates = r.steps * r.batch * r.gates(), weight = r.gates() * r.width;
  const int64_t kept = r.keeps ? over_time : state;
  if (r.part == kForward) {
    switch (r.cell) {
      case kLstm:
        return {{gates, weight, r.gates(), state, state}, {gates, over_time, kept}, {{0, 0}}};
      case kGru:
        return {{gates, weight, r.gates(), state}, {gates, over_time, kept}, {{0, 0}}};
      default:
        return {{gates, weight, r.gates(), state}, {gates}, {{0, 0}}};
    }
  }
  switch (r.cell) {
    case kLstm:
      return {{gates, weight, over_time, state, over_time, state, state},
              {gates, state, state},
              {{0, 0}, {5, 1}, {6, 2}}};
    case kGru:
      return {{gates, weight, over_time, over_time, state, over_time, state},
              {gates, gates, state},
              {{0, 0}, {6, 2}}};
    default:
      return {{over_time, weight, over_time, state}, {gates, state}, {{2, 0}, {3, 1}}};
  }
}

// Where the rows of a share begin, at a time, in an array whose rows have `width` elements.
int64_t place(const Recurrence& r, int64_t share, int64_t time, int64_t width) {
  return (time * r.batch + r.shares[share].first) * width;
}

void run_forward(const Recurrence& r, const Arrays& arrays, int64_t share, Product& product) {
  const int64_t n = r.width, g = r.gates(), rows = r.shares[share].count;
  const bool simple = r.cell == kTanh || r.cell == kRelu;
  const float* const bias = arrays.operand(2);
  const float* before = arrays.operand(3) + place(r, share, 0, n);
  const float* c_before = r.cell == kLstm ? arrays.operand(4) + place(r, share, 0, n) : nullptr;
  for (int64_t step = 0; step < r.steps; ++step) {
    const int64_t time = r.time(step);
    float* const gates = arrays.result(0) + place(r, share, time, g);
    float* const h = arrays.result(simple ? 0 : 1) + place(r, share, time, n);
    float* const kept =
        simple ? nullptr : arrays.result(2) + place(r, share, r.keeps ? time : 0, n);
    float* const result = r.adds() ? gates : product.own();
    product.run(before, result);
    for (int64_t i = 0; i < rows; ++i) {
      switch (r.cell) {
        case kLstm:
          lstm_row(n, gates + i * g, bias, c_before + i * n, kept + i * n, h + i * n);
          break;
        case kGru:
          gru_row(n, gates + i * g, result + i * g, bias, before + i * n, kept + i * n, h + i * n);
          break;
        case kTanh:
          tanh_row(n, h + i * n, bias);
          break;
        case kRelu:
          relu_row(n, h + i * n, bias);
      }
    }
    before = h;
    c_before = kept;
  }
}

void run_gradient(const Recurrence& r, const Arrays& arrays, int64_t share, Product& product) {
  const int64_t n = r.width, g = r.gates(), rows = r.shares[share].count, at = place(r, share, 0, n);
  float* const dh = arrays.result(r.cell == kGru ? 2 : 1) + at;
  for (int64_t step = 0; step < r.steps; ++step) {
    const int64_t time = r.time(step), over_gates = place(r, share, time, g);
    const int64_t over_time = place(r, share, time, n);
    const bool first = step == r.steps - 1;  // of the forward pass
    const int64_t earlier = first ? at : place(r, share, r.time(step + 1), n);
    float* const gates = arrays.result(0) + over_gates;
    const float* factor = gates;
    switch (r.cell) {
      case kLstm: {
        const float* const before = first ? arrays.operand(3) : arrays.operand(2);
        for (int64_t i = 0; i < rows * n; i += n) {
          lstm_row_gradient(n, gates + 4 * i, before + earlier + i,
                            arrays.operand(2) + over_time + i, arrays.operand(4) + over_time + i,
                            dh + i, arrays.result(2) + at + i);
        }
        break;
      }
      case kGru: {
        const float* const before = first ? arrays.operand(4) : arrays.operand(3);
        float* const recurrent = arrays.result(1) + over_gates;
        for (int64_t i = 0; i < rows * n; i += n) {
          gru_row_gradient(n, gates + 3 * i, arrays.operand(2) + over_time + i,
                           before + earlier + i, arrays.operand(5) + over_time + i,
                           recurrent + 3 * i, dh + i);
        }
        factor = recurrent;
        break;
      }
      case kTanh:
        for (int64_t i = 0; i < rows * n; i += n) {
          tanh_row_gradient(n, arrays.operand(0) + over_time + i, gates + i, dh + i);
        }
        break;
      case kRelu:
        for (int64_t i = 0; i < rows * n; i += n) {
          relu_row_gradient(n, arrays.operand(0) + over_time + i, gates + i, dh + i);
        }
    }
    product.run(factor, dh);
  }
}

ffi::ErrorOr<std::unique_ptr<Recurrence>> Instantiate(Span shape, int64_t cell, int64_t part,
                                                      int64_t reverse, int64_t narrow,
                                                      int64_t keeps, int64_t threads,
                                                      int64_t scratch) {
  try {
    return with_scratch(make_recurrence(sizes(shape), cell, part, reverse != 0, narrow != 0,
                                        keeps != 0, threads),
                        scratch);
  } catch (const std::exception& error) {
    return ffi::Unexpected(ffi::Error::Internal(std::string("recurrence: ") + error.what()));
  }
}

// Whether a buffer holds so many elements of a type.
bool holds(const ffi::AnyBuffer& buffer, ffi::DataType type, int64_t count) {
  return buffer.element_type() == type && buffer.element_count() == static_cast<size_t>(count);
}

// Collects the arrays of a call; its scratch memory is the last result. False if it has others.
bool take(const Recurrence& r, const ffi::RemainingArgs& operands,
          const ffi::RemainingRets& results, Arrays& arrays) {
  const Signature signature = signature_of(r);
  if (operands.size() != signature.operands.size() ||
      results.size() != signature.results.size() + 1) {
    return false;
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    const auto buffer = operands.get<ffi::AnyBuffer>(i);
    const auto type = r.narrow && i == kWeight ? ffi::BF16 : ffi::F32;
    if (!buffer.has_value() || !holds(*buffer, type, signature.operands[i])) return false;
    arrays.operands.push_back(static_cast<char*>(buffer->untyped_data()));
  }
  for (size_t i = 0; i < results.size(); ++i) {
    auto buffer = results.get<ffi::AnyBuffer>(i);
    if (!buffer.has_value()) return false;
    ffi::AnyBuffer& array = **buffer;
    const bool scratch = i == signature.results.size();
    if (scratch ? array.element_type() != ffi::U8 || array.element_count() < r.wanted()
                : !holds(array, ffi::F32, signature.results[i])) {
      return false;
    }
    arrays.results.push_back(static_cast<char*>(array.untyped_data()));
  }
  for (const auto& [operand, result] : signature.in_place) {
    char* const from = arrays.operands[operand];
    char* const to = arrays.results[result];
    if (from != to) std::memcpy(to, from, sizeof(float) * signature.results[result]);
  }
  return true;
}

ffi::Error Execute(Recurrence* r, ffi::ThreadPool pool, ffi::RemainingArgs operands,
                   ffi::RemainingRets results) {
  try {
    Arrays arrays;
    if (!take(*r, operands, results, arrays)) {
      return ffi::Error::InvalidArgument(
          "recurrence: shapes or types are not those it was made for");
    }
    char* const memory = arrays.results.back();
    void* weight = arrays.operands[kWeight];
    if (r->reordered()) {
      OneThread one;
      r->pack.execute(stream(), {{DNNL_ARG_FROM, {r->plain, engine(), weight}},
                                 {DNNL_ARG_TO, {r->packed, engine(), memory}},
                                 {DNNL_ARG_SCRATCHPAD,
                                  {r->packing, engine(), memory + r->packed_bytes()}}});
      weight = memory;
    }
    run_shares(pool, static_cast<int64_t>(r->shares.size()), [&](int64_t share) {
      Product product(*r, share, weight, memory + r->packed_bytes() + share * r->share_bytes());
      (r->part == kForward ? run_forward : run_gradient)(*r, arrays, share, product);
    });
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("recurrence: ") + error.what());
  }
  return ffi::Error::Success();
}

}  // namespace

// What follows is what the library is loaded for.
#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(RecurrenceInstantiate, Instantiate,
                              ffi::Ffi::BindInstantiate()
                                  .Attr<Span>("shape")
                                  .Attr<int64_t>("cell")
                                  .Attr<int64_t>("part")
                                  .Attr<int64_t>("reverse")
                                  .Attr<int64_t>("narrow")
                                  .Attr<int64_t>("keeps")
                                  .Attr<int64_t>("threads")
                                  .Attr<int64_t>("scratch"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(RecurrenceExecute, Execute,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::State<Recurrence>>()
                                  .Ctx<ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .RemainingRets());

}  // namespace emulator

extern "C" XLA_FFI_TypeId* RecurrenceTypeId() { return &emulator::Recurrence::id; }

extern "C" const XLA_FFI_TypeInfo* RecurrenceTypeInfo() {
  static const XLA_FFI_TypeInfo info = xla::ffi::MakeTypeInfo<emulator::Recurrence>();
  return &info;
}

// Bytes of scratch memory that a recurrent layer wants, -1 where oneDNN has no kernel for it.
extern "C" int64_t recurrence_scratch(const int64_t* shape, int64_t cell, int64_t part,
                                      int64_t reverse, int64_t narrow, int64_t keeps,
                                      int64_t threads) {
  try {
    const auto r = emulator::make_recurrence(emulator::Sizes(shape, shape + 3), cell, part,
                                             reverse != 0, narrow != 0, keeps != 0, threads);
    return static_cast<int64_t>(r->wanted());
  } catch (const std::exception&) {
    return -1;
  }
}

#pragma GCC visibility pop
