// Products of matrices, with a bias where there is one.
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "onednn.h"
#include "shares.h"

namespace emulator {
namespace {

namespace ffi = ::xla::ffi;
using Type = dnnl::memory::data_type;

// Some of the matrices, some of the rows and some of the columns of each.
struct Piece {
  int64_t first, count, row, rows, column, columns;
};

struct Multiplication {
  dnnl::matmul primitive;
  dnnl::memory::desc a, b, bias, y, scratch;
};

// A product as it is made once, when XLA loads an executable.
struct Product {
  static ffi::TypeId id;

  int64_t batch, m, k, n;
  bool turned_a, turned_b, biased;
  bool narrow, rounded;  // whether the factors, and the result, are bfloat16
  std::vector<Piece> pieces;
  std::vector<std::shared_ptr<Multiplication>> kernels;
  size_t scratch = 0;  // bytes for one share

  Type source() const { return narrow ? Type::bf16 : Type::f32; }
  Type result() const { return rounded ? Type::bf16 : Type::f32; }
  size_t wanted() const { return pieces.size() * scratch; }
};

ffi::TypeId Product::id = {};

// Multiples of this many rows or columns fill the processor's registers.
constexpr int64_t kRegister = 16;

std::vector<Piece> divide(const Product& p, int64_t threads) {
  std::vector<Piece> pieces;
  const int64_t shares = std::min(threads, p.batch);
  if (shares == threads || p.batch > 1) {
    for (int64_t s = 0; s < shares; ++s) {
      const int64_t from = p.batch * s / shares, to = p.batch * (s + 1) / shares;
      pieces.push_back({from, to - from, 0, p.m, 0, p.n});
    }
    return pieces;
  }
  const bool by_rows = p.m >= p.n;
  const int64_t length = by_rows ? p.m : p.n;
  const int64_t units = (length + kRegister - 1) / kRegister;
  const int64_t count = std::min(threads, units);
  for (int64_t s = 0; s < count; ++s) {
    const int64_t from = units * s / count * kRegister;
    const int64_t to = std::min(length, units * (s + 1) / count * kRegister);
    pieces.push_back(by_rows ? Piece{0, 1, from, to - from, 0, p.n}
                             : Piece{0, 1, 0, p.m, from, to - from});
  }
  return pieces;
}

// A piece of matrices of `rows` by `columns` that lie in larger ones of `all_rows` by `all_columns`.
dnnl::memory::desc matrices(Type type, int64_t count, int64_t rows, int64_t columns,
                            int64_t all_rows, int64_t all_columns, bool turned) {
  const Sizes strides = turned ? Sizes{1, all_rows} : Sizes{all_columns, 1};
  if (count == 1) return {{rows, columns}, type, strides};
  return {{count, rows, columns}, type, {all_rows * all_columns, strides[0], strides[1]}};
}

std::shared_ptr<Multiplication> make_kernel(const Product& p, const Piece& piece) {
  auto made = std::make_shared<Multiplication>();
  made->a = matrices(p.source(), piece.count, piece.rows, p.k, p.m, p.k, p.turned_a);
  made->b = matrices(p.source(), piece.count, p.k, piece.columns, p.k, p.n, p.turned_b);
  made->y = matrices(p.result(), piece.count, piece.rows, piece.columns, p.m, p.n, false);
  const dnnl::primitive_attr attr = attributes();
  if (p.biased) {
    made->bias = piece.count == 1
                     ? dnnl::memory::desc({1, piece.columns}, p.source(), Sizes{piece.columns, 1})
                     : dnnl::memory::desc({1, 1, piece.columns}, p.source(),
                                          Sizes{piece.columns, piece.columns, 1});
  }
  const auto pd = p.biased ? dnnl::matmul::primitive_desc(engine(), made->a, made->b, made->bias,
                                                          made->y, attr)
                           : dnnl::matmul::primitive_desc(engine(), made->a, made->b, made->y, attr);
  refuse_plain_loops(pd.impl_info_str());
  refuse_odd_pairs(pd.impl_info_str(), p.narrow, p.k);
  made->primitive = dnnl::matmul(pd);
  made->scratch = pd.scratchpad_desc();
  return made;
}

std::unique_ptr<Product> make_product(const Sizes& shape, bool turned_a, bool turned_b, bool biased,
                                      bool narrow, bool rounded, int64_t threads) {
  OneThread one;
  auto p = std::make_unique<Product>();
  p->batch = shape.at(0);
  p->m = shape.at(1);
  p->k = shape.at(2);
  p->n = shape.at(3);
  p->turned_a = turned_a;
  p->turned_b = turned_b;
  p->biased = biased;
  p->narrow = narrow;
  p->rounded = rounded;
  p->pieces = divide(*p, threads);
  for (size_t i = 0; i < p->pieces.size(); ++i) {
    size_t twin = 0;
    const Piece& piece = p->pieces[i];
    const auto alike = [&](const Piece& other) {
      return other.count == piece.count && other.rows == piece.rows &&
             other.columns == piece.columns;
    };
    while (twin < i && !alike(p->pieces[twin])) ++twin;
    p->kernels.push_back(twin < i ? p->kernels[twin] : make_kernel(*p, piece));
    p->scratch = std::max(p->scratch, whole_lines(p->kernels[i]->scratch.get_size()));
  }
  return p;
}

ffi::ErrorOr<std::unique_ptr<Product>> Instantiate(Span shape, int64_t turned_a, int64_t turned_b,
                                                   int64_t biased, int64_t narrow, int64_t rounded,
                                                   int64_t threads, int64_t scratch) {
  try {
    return with_scratch(make_product(sizes(shape), turned_a != 0, turned_b != 0, biased != 0,
                                     narrow != 0, rounded != 0, threads),
                        scratch);
  } catch (const std::exception& error) {
    return ffi::Unexpected(ffi::Error::Internal(std::string("product: ") + error.what()));
  }
}

// Whether a buffer holds so many elements of a type.
bool holds(const ffi::AnyBuffer& buffer, bool narrow, int64_t count) {
  return buffer.element_type() == (narrow ? ffi::BF16 : ffi::F32) &&
         buffer.element_count() == static_cast<size_t>(count);
}

// The address of an element.
void* at(void* base, Type type, int64_t element) {
  return static_cast<char*>(base) + element * (type == Type::bf16 ? 2 : 4);
}

ffi::Error Execute(Product* p, ffi::ThreadPool pool, ffi::RemainingArgs arguments,
                   ffi::Result<ffi::AnyBuffer> result, ffi::ResultBuffer<ffi::U8> scratch) {
  if (arguments.size() != (p->biased ? 3u : 2u)) {
    return ffi::Error::InvalidArgument("product: it has not the operands that it was made for");
  }
  const auto a = arguments.get<ffi::AnyBuffer>(0), b = arguments.get<ffi::AnyBuffer>(1);
  const auto c = arguments.get<ffi::AnyBuffer>(p->biased ? 2 : 0);
  if (!a.has_value() || !b.has_value() || !c.has_value() ||
      !holds(*a, p->narrow, p->batch * p->m * p->k) ||
      !holds(*b, p->narrow, p->batch * p->k * p->n) ||
      !holds(*result, p->rounded, p->batch * p->m * p->n) ||
      (p->biased && !holds(*c, p->narrow, p->n)) || scratch->element_count() < p->wanted()) {
    return ffi::Error::InvalidArgument("product: shapes or types are not those it was made for");
  }
  auto* const pads = reinterpret_cast<char*>(scratch->typed_data());
  try {
    run_shares(pool, static_cast<int64_t>(p->pieces.size()), [&](int64_t share) {
      const Piece& piece = p->pieces[share];
      const Multiplication& kernel = *p->kernels[share];
      const int64_t row = piece.row * (p->turned_a ? 1 : p->k);
      const int64_t column = piece.column * (p->turned_b ? p->k : 1);
      const int64_t corner = piece.row * p->n + piece.column;
      const auto memory = [](const dnnl::memory::desc& desc, void* base, int64_t element) {
        return dnnl::memory(desc, engine(), at(base, desc.get_data_type(), element));
      };
      std::unordered_map<int, dnnl::memory> handed{
          {DNNL_ARG_SRC, memory(kernel.a, a->untyped_data(), piece.first * p->m * p->k + row)},
          {DNNL_ARG_WEIGHTS,
           memory(kernel.b, b->untyped_data(), piece.first * p->k * p->n + column)},
          {DNNL_ARG_DST,
           memory(kernel.y, result->untyped_data(), piece.first * p->m * p->n + corner)},
          {DNNL_ARG_SCRATCHPAD, {kernel.scratch, engine(), pads + share * p->scratch}}};
      if (p->biased) {
        handed.insert({DNNL_ARG_BIAS, memory(kernel.bias, c->untyped_data(), piece.column)});
      }
      kernel.primitive.execute(stream(), handed);
    });
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("product: ") + error.what());
  }
  return ffi::Error::Success();
}

}  // namespace

// What follows is what the library is loaded for.
#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(ProductInstantiate, Instantiate,
                              ffi::Ffi::BindInstantiate()
                                  .Attr<Span>("shape")
                                  .Attr<int64_t>("turned_a")
                                  .Attr<int64_t>("turned_b")
                                  .Attr<int64_t>("biased")
                                  .Attr<int64_t>("narrow")
                                  .Attr<int64_t>("rounded")
                                  .Attr<int64_t>("threads")
                                  .Attr<int64_t>("scratch"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(ProductExecute, Execute,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::State<Product>>()
                                  .Ctx<ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::U8>>());

}  // namespace emulator

extern "C" XLA_FFI_TypeId* ProductTypeId() { return &emulator::Product::id; }

extern "C" const XLA_FFI_TypeInfo* ProductTypeInfo() {
  static const XLA_FFI_TypeInfo info = xla::ffi::MakeTypeInfo<emulator::Product>();
  return &info;
}

// Bytes of scratch memory that a product wants, -1 where oneDNN has no kernel for it.
extern "C" int64_t product_scratch(const int64_t* shape, int64_t turned_a, int64_t turned_b,
                                   int64_t biased, int64_t narrow, int64_t rounded,
                                   int64_t threads) {
  try {
    const auto p = emulator::make_product(emulator::Sizes(shape, shape + 4), turned_a != 0,
                                          turned_b != 0, biased != 0, narrow != 0, rounded != 0,
                                          threads);
    return static_cast<int64_t>(p->wanted());
  } catch (const std::exception&) {
    return -1;
  }
}

#pragma GCC visibility pop
