"""Active ISO 4217 currencies and how many decimals their minor unit has. JPY has none, KWD three."""

from __future__ import annotations

from typing import Final

from billing.errors import InvalidCurrency

_TWO_DECIMALS = """
AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF CNY COP CRC CUP CVE CZK
DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD
KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP
PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH
USD UYU UZS VED VES WST XCD XCG YER ZAR ZMW ZWG
"""
_NO_DECIMALS = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX VND VUV XAF XOF XPF"
_THREE_DECIMALS = "BHD IQD JOD KWD LYD OMR TND"

MINOR_DIGITS: Final[dict[str, int]] = {
    **dict.fromkeys(_TWO_DECIMALS.split(), 2),
    **dict.fromkeys(_NO_DECIMALS.split(), 0),
    **dict.fromkeys(_THREE_DECIMALS.split(), 3),
}


def minor_digits(code: str) -> int:
    """Decimals of the currency's minor unit: 2 for USD, 0 for JPY, 3 for KWD. Raises `InvalidCurrency`."""
    try:
        return MINOR_DIGITS[code]
    except KeyError:
        raise InvalidCurrency(f"{code!r} is no ISO 4217 currency code (three capitals, such as USD)") from None


def check_currency(code: str, field: str) -> str:
    """`code` itself when it is an ISO 4217 code; raises `InvalidCurrency` that names `field`."""
    if code not in MINOR_DIGITS:
        raise InvalidCurrency(
            f"{field}: {code!r} is no ISO 4217 currency code (three capitals, such as USD)", field=field
        )
    return code
