// Runs the shares of a call on XLA's own threads; oneDNN itself starts none.
#ifndef EMULATOR_NATIVE_SHARES_H_
#define EMULATOR_NATIVE_SHARES_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>

#include "xla/ffi/api/ffi.h"

namespace emulator {

// While one lives, OpenMP runs everything on the thread that asks. oneDNN asks it for the number of
// threads when a primitive is made and when it runs.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

// What the threads that work on one call know of it. A thread that XLA starts late, after the call
// is over, finds no share left and touches nothing else.
class Shares {
 public:
  Shares(int64_t count, std::function<void(int64_t)> run) : count_(count), run_(std::move(run)) {}

  // Takes shares until none is left.
  void Work() {
    for (int64_t share; (share = next_.fetch_add(1)) < count_;) {
      try {
        OneThread one;
        run_(share);
      } catch (...) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!error_) error_ = std::current_exception();
      }
      std::lock_guard<std::mutex> lock(mutex_);
      if (++done_ == count_) finished_.notify_all();
    }
  }

  // Waits for the shares that other threads have taken; every share has been taken by then.
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    finished_.wait(lock, [this] { return done_ == count_; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  const int64_t count_;
  const std::function<void(int64_t)> run_;
  std::atomic<int64_t> next_{0};
  std::mutex mutex_;
  std::condition_variable finished_;
  int64_t done_ = 0;
  std::exception_ptr error_;
};

// Runs `run(0)` to `run(count - 1)`, each once, and returns when all have ended. The calling thread
// takes shares itself, so that it never waits for a thread that is not there.
inline void run_shares(xla::ffi::ThreadPool& pool, int64_t count,
                       std::function<void(int64_t)> run) {
  auto shares = std::make_shared<Shares>(count, std::move(run));
  for (int64_t other = 1; other < count; ++other) {
    pool.Schedule([shares] { shares->Work(); });
  }
  shares->Work();
  shares->Wait();
}

}  // namespace emulator

#endif  // EMULATOR_NATIVE_SHARES_H_
