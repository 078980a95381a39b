"""Lowerings: Bessel and Airy functions, by the approximations of the Cephes library."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from emulator.ops._promote import elementwise
from emulator.ops.registry import op

# Coefficients of the Cephes Mathematical Library (S. L. Moshier): highest power first for the
# rational functions, highest order first for the Chebyshev series.

_AIRY_AN = (
    *(0.346538101525629, 12.007595273964581, 76.27960536152345, 168.08922493463058),
    *(159.75639135016442, 70.53609068404442, 14.026469116338967, 1.0),
)
_AIRY_AD = (
    *(0.5675945326387702, 14.75625625848472, 84.51389701414746, 177.31808814540045),
    *(164.2346928715297, 71.47784008255756, 14.095913560783403, 1.0),
)
_AIRY_AFN = (
    *(-0.1316963234183318, -0.6264565444319123, -0.6931580360369335, -0.2797799815451191),
    *(-0.04919001326095003, -0.004062659235948854, -0.0001592764962392621),
    *(-2.776491081552329e-06, -1.6778769848911465e-08),
)
_AIRY_AFD = (
    *(13.356042070655324, 32.682503279522464, 26.736704094149957, 9.187074029072596),
    *(1.4752914677166642, 0.11568717379518804, 0.004402916416152112, 7.547203482874142e-05),
    *(4.5185009297058035e-07,),
)
_AIRY_AGN = (
    *(0.01973399320916857, 0.39110302961568827, 1.0657989759959559, 0.9391692298166502),
    *(0.35146565610554764, 0.06338889196289255, 0.005858041130483885, 0.000282851600836737),
    *(6.98793669997261e-06, 8.117892395543892e-08, 3.415517847659236e-10),
)
_AIRY_AGD = (
    *(9.30892908077442, 19.835292871831214, 15.564662893286462, 5.476860694229755),
    *(0.9542936116189619, 0.08645808263523921, 0.004126565238242226, 0.00010125908511650914),
    *(1.1716673321441352e-06, 4.9183457006293e-09),
)
_J0_PP = (
    *(0.0007969367292973471, 0.08283523921074408, 1.239533716464143, 5.447250030587687),
    *(8.74716500199817, 5.303240382353949, 1.0),
)
_J0_PQ = (
    *(0.0009244088105588637, 0.08562884743544745, 1.2535274390105895, 5.470977403304171),
    *(8.761908832370695, 5.306052882353947, 1.0),
)
_J0_QP = (
    *(-0.011366383889846916, -1.2825271867050931, -19.553954425773597, -93.20601521237683),
    *(-177.68116798048806, -147.07750515495118, -51.41053267665993, -6.050143506007285),
)
_J0_QQ = (
    *(64.3178256118178, 856.4300259769806, 3882.4018360540163, 7240.467741956525),
    *(5930.727011873169, 2062.0933166032783, 242.0057402402914),
)
_J0_RP = (*(-4794432209.782018, 1956174919465.5657, -249248344360967.72, 9708622510473064.0),)
_J0_RQ = (
    *(499.563147152651, 173785.4016763747, 48440965.83399621, 11185553704.535683),
    *(2112775201154.892, 310518229857422.56, 3.1812195594320496e16, 1.7108629408104315e18),
)
_J1_PP = (
    *(0.0007621256162081731, 0.07313970569409176, 1.1271960812968493, 5.112079511468076),
    *(8.424045901417724, 5.214515986823615, 1.0),
)
_J1_PQ = (
    *(0.0005713231280725487, 0.06884559087544954, 1.105142326340617, 5.073863861286015),
    *(8.399855543276042, 5.209828486823619, 1.0),
)
_J1_QP = (
    *(0.05108625947501766, 4.982138729512334, 75.82382841325453, 366.7796093601508),
    *(710.8563049989261, 597.4896124006136, 211.68875710057213, 25.207020585802372),
)
_J1_QQ = (
    *(74.23732770356752, 1056.4488603826283, 4986.410583376536, 9562.318924047562),
    *(7997.041604473507, 2826.1927851763908, 336.0936078106983),
)
_J1_RP = (*(-899971225.7055594, 452228297998.19403, -72749424522181.83, 3682957328638529.0),)
_J1_RQ = (
    *(620.8364781180543, 256987.25675774884, 83514679.14319493, 22151159547.97925),
    *(4749141220799.914, 784369607876235.9, 8.952223361846274e16, 5.322786203326801e18),
)
_Y0_YP = (
    *(15592.436785523574, -14663929.59039716, 5435264770.518765, -982136065717.9115),
    *(87590639439536.7, -3466283033847297.0, 4.4273326857256984e16, -1.8495080043698668e16),
)
_Y0_YQ = (
    *(1041.2835366425984, 626107.330137135, 268919633.39381415, 86400248710.3935),
    *(20297961275010.555, 3171577528429750.5, 2.5059625617265306e17),
)
_Y1_YP = (
    *(1263204747.9017804, -647355876379.1603, 114509511541823.73, -8127702555013251.0),
    *(2.024394757135949e17, -7.788771962659501e17),
)
_Y1_YQ = (
    *(594.3015923461282, 235564.09294306856, 73481194.44597217, 18760131610.870617),
    *(3882312774962.3857, 620557727146953.8, 6.871410873553005e16, 3.9727060811656064e18),
)
_K0_A = (
    *(1.374465435613523e-16, 4.25981614279661e-14, 1.0349695257633842e-11),
    *(1.904516377220209e-09, 2.5347910790261494e-07, 2.286212103119452e-05),
    *(0.001264615411446926, 0.0359799365153615, 0.3442898999246285, -0.5353273932339028),
)
_K0_B = (
    *(5.300433772686263e-18, -1.6475804301524212e-17, 5.2103915050390274e-17),
    *(-1.678231096805412e-16, 5.512055978524319e-16, -1.848593377343779e-15),
    *(6.3400764774050706e-15, -2.2275133269916698e-14, 8.032890775363575e-14),
    *(-2.9800969231727303e-13, 1.140340588208475e-12, -4.514597883373944e-12),
    *(1.8559491149547177e-11, -7.957489244477107e-11, 3.577397281400301e-10),
    *(-1.69753450938906e-09, 8.574034017414225e-09, -4.660489897687948e-08),
    *(2.766813639445015e-07, -1.8317555227191195e-06, 1.39498137188765e-05),
    *(-0.00012849549581627802, 0.0015698838857300533, -0.0314481013119645),
    *(2.4403030820659555,),
)
_K1_A = (
    *(-7.023863479386288e-18, -2.427449850519366e-15, -6.666901694199329e-13),
    *(-1.4114883926335278e-10, -2.213387630734726e-08, -2.4334061415659684e-06),
    *(-0.0001730288957513052, -0.006975723859639864, -0.12261118082265715),
    *(-0.3531559607765449, 1.5253002273389478),
)
_K1_B = (
    *(-5.756744483665017e-18, 1.7940508731475592e-17, -5.689462558442859e-17),
    *(1.838093544366639e-16, -6.057047248373319e-16, 2.038703165624334e-15),
    *(-7.019837090418314e-15, 2.4771544244813043e-14, -8.976705182324994e-14),
    *(3.3484196660784293e-13, -1.2891739609510289e-12, 5.13963967348173e-12),
    *(-2.1299678384275683e-11, 9.218315187605006e-11, -4.1903547593418965e-10),
    *(2.015049755197033e-09, -1.0345762465678097e-08, 5.7410841254500495e-08),
    *(-3.5019606030878126e-07, 2.406484947837217e-06, -1.936197974166083e-05),
    *(0.00019521551847135162, -0.002857816859622779, 0.10392373657681724, 2.7206261904844427),
)


def _horner(coefficients: Sequence[float], x: jax.Array) -> jax.Array:
    """A polynomial, highest power first."""
    total = jnp.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total = total * x + c
    return total


def _chebyshev(coefficients: Sequence[float], x: jax.Array) -> jax.Array:
    """A Chebyshev series by Clenshaw's recurrence, highest order first."""
    a, p, q = jnp.full_like(x, coefficients[0]), jnp.zeros_like(x), jnp.zeros_like(x)
    for c in coefficients[1:]:
        p, q = q, a
        a = x * q - p + c
    return 0.5 * (a - p)


def _waves(
    x: jax.Array, tables: tuple[Sequence[float], ...], shift: float
) -> tuple[jax.Array, jax.Array]:
    """Hankel's expansion for large arguments: the functions of the first and second kind."""
    pp, pq, qp, qq = tables
    w = 5 / x
    z = w * w
    p, q = _horner(pp, z) / _horner(pq, z), w * (_horner(qp, z) / _horner(qq, z))
    sine, cosine = jnp.sin(x - shift), jnp.cos(x - shift)
    root = math.sqrt(2 / math.pi) / jnp.sqrt(x)
    return (p * cosine - q * sine) * root, (p * sine + q * cosine) * root


_ZERO = (_J0_PP, _J0_PQ, _J0_QP, _J0_QQ)
_ONE = (_J1_PP, _J1_PQ, _J1_QP, _J1_QQ)


def _j0(x: jax.Array) -> jax.Array:
    x = jnp.abs(x)
    z = x * x
    roots = (z - 5.78318596294678452118) * (z - 30.4712623436620863991)
    near = roots * _horner(_J0_RP, z) / _horner(_J0_RQ, z)
    near = jnp.where(x < 1e-5, 1 - z / 4, near)
    return jnp.where(x <= 5, near, _waves(x, _ZERO, math.pi / 4)[0])


def _j1(x: jax.Array) -> jax.Array:
    size = jnp.abs(x)
    z = size * size
    near = _horner(_J1_RP, z) / _horner(_J1_RQ, z) * size
    near = near * (z - 14.6819706421238932572) * (z - 49.2184563216946036703)
    value = jnp.where(size <= 5, near, _waves(size, _ONE, 3 * math.pi / 4)[0])
    return jnp.where(x < 0, -value, jnp.where(x == 0, x, value))


def _outside(x: jax.Array, value: jax.Array, at_zero: float) -> jax.Array:
    """A function of positive numbers: a pole at 0 and NaN below."""
    return jnp.where(x == 0, at_zero, jnp.where(x < 0, jnp.nan, value))


def _y0(x: jax.Array) -> jax.Array:
    z = x * x
    near = _horner(_Y0_YP, z) / _horner(_Y0_YQ, z)
    near = near + (2 / math.pi) * jnp.log(x) * _j0(x)
    far = _waves(x, _ZERO, math.pi / 4)[1]
    return _outside(x, jnp.where(x <= 5, near, far), -jnp.inf)


def _y1(x: jax.Array) -> jax.Array:
    z = x * x
    near = x * (_horner(_Y1_YP, z) / _horner(_Y1_YQ, z))
    near = near + (2 / math.pi) * (_j1(x) * jnp.log(x) - 1 / x)
    far = _waves(x, _ONE, 3 * math.pi / 4)[1]
    return _outside(x, jnp.where(x <= 5, near, far), -jnp.inf)


def _k0(x: jax.Array, *, scaled: bool = False) -> jax.Array:
    logarithm = jnp.log(x) - math.log(2)  # half of the least number is none
    near = _chebyshev(_K0_A, x * x - 2) - logarithm * special.i0(x)
    far = _chebyshev(_K0_B, 8 / x - 2) / jnp.sqrt(x)
    near, far = (near * jnp.exp(x), far) if scaled else (near, jnp.exp(-x) * far)
    return _outside(x, jnp.where(x <= 2, near, far), jnp.inf)


def _k1(x: jax.Array, *, scaled: bool = False) -> jax.Array:
    near = (jnp.log(x) - math.log(2)) * special.i1(x) + _chebyshev(_K1_A, x * x - 2) / x
    far = _chebyshev(_K1_B, 8 / x - 2) / jnp.sqrt(x)
    near, far = (near * jnp.exp(x), far) if scaled else (near, jnp.exp(-x) * far)
    return _outside(x, jnp.where(x <= 2, near, far), jnp.inf)


def _spherical_j0(x: jax.Array) -> jax.Array:
    z = x * x
    powers = [(-1) ** k / math.factorial(2 * k + 1) for k in reversed(range(7))]
    value = jnp.where(jnp.abs(x) < 0.5, _horner(powers, z), jnp.sin(x) / x)
    return jnp.where(jnp.isinf(x), 0, value)


def _airy(x: jax.Array) -> jax.Array:
    root = jnp.sqrt(jnp.abs(x))
    zeta = 2 * jnp.abs(x) * root / 3
    scale = 1 / math.sqrt(math.pi)
    z = 1 / zeta
    w = z * z
    f = 1 + w * _horner(_AIRY_AFN, w) / _horner(_AIRY_AFD, w)
    g = z * _horner(_AIRY_AGN, w) / _horner(_AIRY_AGD, w)
    angle = zeta + math.pi / 4
    below = scale / jnp.sqrt(root) * (jnp.sin(angle) * f - jnp.cos(angle) * g)
    above = _horner(_AIRY_AN, z) / _horner(_AIRY_AD, z)
    above = scale * above / (2 * jnp.sqrt(root) * jnp.exp(zeta))
    value = jnp.where(x < -2.09, below, jnp.where(x >= 2.09, above, _airy_series(x)))
    return jnp.where(jnp.isinf(x), jnp.nan, jnp.where(x > 103.892, 0, value))


def _airy_series(x: jax.Array) -> jax.Array:
    """The power series between -2.09 and 2.09; 14 terms reach float64's precision there."""
    z = x * x * x
    f, g, m, n = jnp.ones_like(x), x, jnp.ones_like(x), x
    for k in range(1, 43, 3):
        m = m * z / ((k + 1) * (k + 2))
        n = n * z / ((k + 2) * (k + 3))
        f, g = f + m, g + n
    return 0.355028053887817239260 * f - 0.258819403792806798405 * g


def _scaled_k0(x: jax.Array) -> jax.Array:
    return _k0(x, scaled=True)


def _scaled_k1(x: jax.Array) -> jax.Array:
    return _k1(x, scaled=True)


def _modified_i1(x: jax.Array) -> jax.Array:
    return jnp.where(x == 0, 0, special.i1(x))  # 0.0 at -0.0, as torch has it


def _wide(function: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """In float64: a wave far from zero hangs on the last digits of a large angle.

    Where that angle is none in the argument's own type, the function is NaN as in torch.
    """

    def run(x: jax.Array) -> jax.Array:
        angle = x * jnp.sqrt(jnp.abs(x))
        lost = jnp.isinf(angle) & (x < 0)
        return jnp.where(lost, jnp.nan, function(x.astype(np.float64)).astype(x.dtype))

    return run


_FUNCTIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "special_airy_ai": _wide(_airy),
    "special_bessel_j0": _j0,
    "special_bessel_j1": _j1,
    "special_bessel_y0": _y0,
    "special_bessel_y1": _y1,
    "special_modified_bessel_i0": special.i0,
    "special_modified_bessel_i1": _modified_i1,
    "special_modified_bessel_k0": _k0,
    "special_modified_bessel_k1": _k1,
    "special_scaled_modified_bessel_k0": _scaled_k0,
    "special_scaled_modified_bessel_k1": _scaled_k1,
    "special_spherical_bessel_j0": _spherical_j0,
}


def _register(name: str, function: Callable[[jax.Array], jax.Array]) -> None:
    @op(f"aten.{name}.default", cheap=True, differentiable=False)
    def lower(x: jax.Array) -> jax.Array:
        return elementwise(function, lax.stop_gradient(x), to_float=True)


for _name, _function in _FUNCTIONS.items():
    _register(_name, _function)
