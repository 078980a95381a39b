#include "shares.h"

#include <dlfcn.h>

#include <stdexcept>

namespace emulator {
namespace {

struct OpenMp {
  int (*get_max_threads)();
  void (*set_num_threads)(int);
};

// That of the library oneDNN runs on, which is loaded by now.
const OpenMp& open_mp() {
  static const OpenMp functions = [] {
    void* library = dlopen("libgomp.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) throw std::runtime_error("libgomp.so.1 is not loaded");
    return OpenMp{reinterpret_cast<int (*)()>(dlsym(library, "omp_get_max_threads")),
                  reinterpret_cast<void (*)(int)>(dlsym(library, "omp_set_num_threads"))};
  }();
  return functions;
}

}  // namespace

OneThread::OneThread() : before_(open_mp().get_max_threads()) { open_mp().set_num_threads(1); }

OneThread::~OneThread() { open_mp().set_num_threads(before_); }

}  // namespace emulator
