//! Takes an amount as Kubernetes writes it, gives a number that can be compared.

/// How amounts of resources are written: not below 0, with what Kubernetes allows behind the number.
pub(crate) const AMOUNT: &str =
    r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$";

/// Most letters of an amount.
pub(crate) const AMOUNT_LETTERS: usize = 64;

/// Billionths, the smallest that Kubernetes tells apart; what is more than fits counts as all that fits. None for what is no amount.
pub(super) fn billionths(text: &str) -> Option<u128> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, parts) = number.split_once('.').unwrap_or((number, ""));
    if text.len() > AMOUNT_LETTERS || (whole.is_empty() && parts.is_empty()) || parts.contains('.') {
        return None;
    }
    // Nine places behind the point, all of them digits.
    let parts = format!("{:0<9}", parts.get(..9).unwrap_or(parts));
    let whole = if whole.is_empty() { 0 } else { whole.parse().unwrap_or(u128::MAX) };
    let number = whole.saturating_mul(1_000_000_000).saturating_add(parts.parse().ok()?);
    let (times, over) = factor(unit)?;
    Some(number.saturating_mul(times) / over)
}

/// What a unit multiplies and divides by.
fn factor(unit: &str) -> Option<(u128, u128)> {
    if let Some(power) = unit.strip_prefix(['e', 'E']).filter(|power| !power.is_empty() && *power != "i") {
        let power_is_below = power.starts_with('-');
        let digits = power.strip_prefix(['+', '-']).unwrap_or(power);
        let power: u32 = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??;
        let ten = (power <= 99).then(|| 10_u128.saturating_pow(power))?;
        return Some(if power_is_below { (1, ten) } else { (ten, 1) });
    }
    Some(match unit {
        "" => (1, 1),
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1000),
        "k" => (1000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_what_kubernetes_takes_for_them() {
        let one = 1_000_000_000;
        let cases = [
            ("8", Some(8 * one)),
            ("+8", Some(8 * one)),
            ("0", Some(0)),
            ("500m", Some(one / 2)),
            ("0.5", Some(one / 2)),
            (".5", Some(one / 2)),
            ("5.", Some(5 * one)),
            ("1u", Some(1000)),
            ("1n", Some(1)),
            ("0.1234567891", Some(123_456_789)),
            ("2k", Some(2000 * one)),
            ("1E", Some(one * 1_000_000_000_000_000_000)),
            ("1Ei", Some(one << 60)),
            ("1e3", Some(1000 * one)),
            ("1E3", Some(1000 * one)),
            ("1e+3", Some(1000 * one)),
            ("5e-1", Some(one / 2)),
            ("1.5Gi", Some((3 << 29) * one)),
            ("9e99", Some(u128::MAX)),
            ("99999999999999999999999999999999999999999999999999", Some(u128::MAX)),
            ("eight", None),
            ("", None),
            (".", None),
            ("+", None),
            ("Gi", None),
            ("-1", None),
            ("1.2.3", None),
            ("1gi", None),
            ("1K", None),
            ("4GB", None),
            ("1 Gi", None),
            ("1e", None),
            ("1e+", None),
            ("1e100", None),
            ("1e+-3", None),
            ("1é", None),
            ("٣", None),
        ];
        let pattern = regex::Regex::new(AMOUNT).unwrap();
        for (text, expected) in cases {
            assert_eq!(billionths(text), expected, "{text}");
            assert_eq!(pattern.is_match(text), expected.is_some(), "{text}");
        }
    }
}
