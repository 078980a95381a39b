// What all families ask of oneDNN.
#ifndef EMULATOR_NATIVE_ONEDNN_H_
#define EMULATOR_NATIVE_ONEDNN_H_

#include <algorithm>
#include <cstdint>
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

inline bool same(Span found, const Sizes& wanted) {
  return found.size() == wanted.size() && std::equal(found.begin(), found.end(), wanted.begin());
}

// oneDNN's plain loops are slower than XLA's code.
inline void refuse_plain_loops(const std::string& implementation) {
  if (implementation.rfind("ref", 0) == 0) throw std::runtime_error("oneDNN has no fast kernel for it");
}

}  // namespace emulator

#endif  // EMULATOR_NATIVE_ONEDNN_H_
