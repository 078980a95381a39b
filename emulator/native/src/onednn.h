// What all families ask of oneDNN.
#ifndef EMULATOR_NATIVE_ONEDNN_H_
#define EMULATOR_NATIVE_ONEDNN_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "dnnl.hpp"
#include "xla/ffi/api/ffi.h"

namespace emulator {

using Sizes = std::vector<int64_t>;
using Span = xla::ffi::Span<const int64_t>;

inline const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

inline dnnl::stream& stream() {
  static thread_local dnnl::stream here(engine());
  return here;
}

// Bytes rounded up to a line of the processor's cache, so that no two threads write into one.
inline size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

inline Sizes sizes(Span span) { return Sizes(span.begin(), span.end()); }

// What every primitive is made with: its scratch memory is given to it, and factors of float32 are
// multiplied as they are, whatever ONEDNN_DEFAULT_FPMATH_MODE allows.
inline dnnl::primitive_attr attributes() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  attr.set_fpmath_mode(dnnl::fpmath_mode::strict);
  return attr;
}

// An executable has the scratch memory that was asked for when it was lowered. oneDNN may want more
// in a process with other settings (ONEDNN_MAX_CPU_ISA) or on a processor with other caches: the
// executable then cannot be loaded, and is compiled again.
template <typename Made>
std::unique_ptr<Made> with_scratch(std::unique_ptr<Made> made, int64_t bytes) {
  if (made->wanted() > static_cast<size_t>(bytes)) {
    throw std::runtime_error("its scratch memory is too small");
  }
  return made;
}

inline bool same(Span found, const Sizes& wanted) {
  return found.size() == wanted.size() && std::equal(found.begin(), found.end(), wanted.begin());
}

// oneDNN's plain loops are slower than XLA's code.
inline void refuse_plain_loops(const std::string& implementation) {
  if (implementation.rfind("ref", 0) == 0) throw std::runtime_error("oneDNN has no fast kernel for it");
}

// This kernel multiplies bfloat16 in pairs. Where their number is odd, the last factor has a zero
// beside it that is multiplied by it, too: infinity gives NaN.
inline void refuse_odd_pairs(const std::string& implementation, bool narrow, int64_t summed) {
  if (narrow && summed % 2 != 0 && implementation.rfind("gemm", 0) == 0) {
    throw std::runtime_error("oneDNN multiplies infinity by a zero of its own");
  }
}

}  // namespace emulator

#endif  // EMULATOR_NATIVE_ONEDNN_H_
