// What a step of a recurrent cell does to the elements of one row, between its products.
//
// Gates lie side by side as torch has them. Loops have no branches, so that compilers make vectors
// of them.
#ifndef EMULATOR_NATIVE_CELLS_H_
#define EMULATOR_NATIVE_CELLS_H_

#include <cmath>
#include <cstdint>
#include <cstring>

// The arrays of a loop are the same one or lie apart.
#ifdef __clang__
#define EMULATOR_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define EMULATOR_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace emulator {

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// e to a power, within two units in the last place from -87.6 to 88.3; below it is zero, above it
// infinity, and NaN stays NaN. The polynomial is a minimax fit of (e^r - 1 - r) / r^2.
inline float exponential(float x) {
  constexpr float kLeast = -88.0f, kMost = 89.0f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: a sum with it has no fraction
  x = kLeast > x ? kLeast : x;
  x = kMost < x ? kMost : x;
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float q = 1.395059982e-3f;
  q = q * r + 8.368954062e-3f;
  q = q * r + 4.166620597e-2f;
  q = q * r + 1.666651815e-1f;
  q = q * r + 0.5f;
  const float power = float_of((bits_of(shifted) + 127) << 23);
  return (q * r * r + r + 1.0f) * power;
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

// Near zero by a minimax fit of (tanh(a) - a) / a^3, where the exponential would lose digits.
inline float hyperbolic_tangent(float x) {
  const uint32_t sign = bits_of(x) & 0x80000000u;
  const float a = float_of(bits_of(x) & 0x7fffffffu);
  const float square = a * a;
  float q = -5.717040971e-3f;
  q = q * square + 2.065058425e-2f;
  q = q * square - 5.374349654e-2f;
  q = q * square + 1.333149076e-1f;
  q = q * square - 3.333328366e-1f;
  const float small = a + a * square * q;
  const float large = 1.0f - 2.0f / (exponential(2.0f * a) + 1.0f);
  return float_of(bits_of(a < 0.625f ? small : large) | sign);
}

// Rounded to the nearest bfloat16, of two equally near ones to the even one.
inline uint16_t bfloat16_of(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
  return static_cast<uint16_t>(x != x ? (bits >> 16) | 0x40 : nearest);
}

inline void round_row(int64_t n, const float* from, uint16_t* to) {
  EMULATOR_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) to[j] = bfloat16_of(from[j]);
}

// -- forward: `gates` hold sums when a step begins and what the gradient reads when it ends --

inline void lstm_row(int64_t n, float* gates, const float* bias, const float* c_before, float* c,
                     float* h) {
  EMULATOR_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    const float i = sigmoid(gates[j] + bias[j]);
    const float f = sigmoid(gates[n + j] + bias[n + j]);
    const float g = hyperbolic_tangent(gates[2 * n + j] + bias[2 * n + j]);
    const float o = sigmoid(gates[3 * n + j] + bias[3 * n + j]);
    const float next = f * c_before[j] + i * g;
    gates[j] = i;
    gates[n + j] = f;
    gates[2 * n + j] = g;
    gates[3 * n + j] = o;
    c[j] = next;
    h[j] = o * hyperbolic_tangent(next);
  }
}

// `product` is that of the state and the weight; `part` takes the part of it in the new gate.
inline void gru_row(int64_t n, float* gates, const float* product, const float* bias,
                    const float* before, float* part, float* h) {
  EMULATOR_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    const float r = sigmoid(gates[j] + product[j] + bias[j]);
    const float z = sigmoid(gates[n + j] + product[n + j] + bias[n + j]);
    const float recurrent = product[2 * n + j] + bias[2 * n + j];
    const float candidate = hyperbolic_tangent(gates[2 * n + j] + r * recurrent);
    const float previous = before[j];
    gates[j] = r;
    gates[n + j] = z;
    gates[2 * n + j] = candidate;
    part[j] = recurrent;
    h[j] = candidate + z * (previous - candidate);
  }
}

inline void tanh_row(int64_t n, float* h, const float* bias) {
  EMULATOR_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) h[j] = hyperbolic_tangent(h[j] + bias[j]);
}

inline void relu_row(int64_t n, float* h, const float* bias) {
  EMULATOR_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    const float sum = h[j] + bias[j];
    h[j] = sum <= 0.0f ? 0.0f : sum;
  }
}

// -- gradients: `dh` holds that of the state after a step, and `dy` that of the step's output --

inline void lstm_row_gradient(int64_t n, float* gates, const float* c_before, const float* c,
                              const float* dy, const float* dh, float* dc) {
  EMULATOR_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    const float i = gates[j], f = gates[n + j], g = gates[2 * n + j], o = gates[3 * n + j];
    const float tanh_c = hyperbolic_tangent(c[j]);
    const float dhj = dh[j] + dy[j];
    const float dcj = dc[j] + dhj * o * (1.0f - tanh_c * tanh_c);
    gates[j] = dcj * g * i * (1.0f - i);
    gates[n + j] = dcj * c_before[j] * f * (1.0f - f);
    gates[2 * n + j] = dcj * i * (1.0f - g * g);
    gates[3 * n + j] = dhj * tanh_c * o * (1.0f - o);
    dc[j] = dcj * f;
  }
}

// `gates` become the gradients of what the inputs gave, `product` takes those of what the state
// gave, and `dh` the part that reaches the state before past the weight.
inline void gru_row_gradient(int64_t n, float* gates, const float* part, const float* before,
                             const float* dy, float* product, float* dh) {
  EMULATOR_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    const float r = gates[j], z = gates[n + j], candidate = gates[2 * n + j];
    const float dhj = dh[j] + dy[j];
    const float dn = dhj * (1.0f - z) * (1.0f - candidate * candidate);
    const float dz = dhj * (before[j] - candidate) * z * (1.0f - z);
    const float dr = dn * part[j] * r * (1.0f - r);
    gates[j] = product[j] = dr;
    gates[n + j] = product[n + j] = dz;
    gates[2 * n + j] = dn;
    product[2 * n + j] = dn * r;
    dh[j] = dhj * z;
  }
}

// `dy` becomes the gradient of the sum.
inline void tanh_row_gradient(int64_t n, const float* h, float* dy, const float* dh) {
  EMULATOR_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) dy[j] = (dh[j] + dy[j]) * (1.0f - h[j] * h[j]);
}

inline void relu_row_gradient(int64_t n, const float* h, float* dy, const float* dh) {
  EMULATOR_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) dy[j] = h[j] <= 0.0f ? 0.0f : dh[j] + dy[j];
}

}  // namespace emulator

#endif  // EMULATOR_NATIVE_CELLS_H_
