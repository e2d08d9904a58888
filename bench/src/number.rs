//! Numbers as tables show them.

/// To a tenth where there is one, with commas between the thousands.
pub fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    let (whole, tenth) = text.split_once('.').unwrap_or((&text, "0"));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 && grouped != "-" {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if tenth == "0" { grouped } else { format!("{grouped}.{tenth}") }
}

/// Formats a number as [`number`] does, without tenths from 100 on.
pub fn short(value: f64) -> String {
    number(if value >= 100.0 { value.round() } else { value })
}

/// Quotient of `value` and `base`; empty if it is undefined.
pub fn ratio(value: f64, base: f64) -> String {
    let ratio = value / base;
    let digits = if ratio < 0.95 {
        2
    } else if ratio < 9.95 {
        1
    } else {
        0
    };
    if base > 0.0 { format!("{ratio:.digits$}x") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(number(35.0), "35");
        assert_eq!(number(1678.25), "1,678.2");
        assert_eq!(number(1_234_567.0), "1,234,567");
        assert_eq!(number(0.04), "0");
        assert_eq!(number(-100.0), "-100");
        assert_eq!((short(35.5).as_str(), short(1678.5).as_str()), ("35.5", "1,679"));
    }
}
