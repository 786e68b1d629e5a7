//! Counts words of generated text: iterators, hash maps, sorting; most of it is inlined.
use std::collections::HashMap;

fn text(lines: u64) -> String {
    let mut seed = 1u64;
    let mut out = String::new();
    for _ in 0..lines {
        for _ in 0..12 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let word = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"][(seed >> 61) as usize];
            out.push_str(word);
            out.push_str(&((seed >> 40) % 500).to_string());
            out.push(' ');
        }
        out.push('\n');
    }
    out
}

fn count(text: &str) -> HashMap<&str, usize> {
    let mut counts = HashMap::new();
    for word in text.lines().flat_map(|line| line.split_whitespace()) {
        *counts.entry(word).or_insert(0) += 1;
    }
    counts
}

fn longest<'a>(counts: &HashMap<&'a str, usize>) -> Vec<(&'a str, usize)> {
    let mut all: Vec<_> = counts.iter().map(|(word, count)| (*word, *count)).collect();
    all.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    all
}

fn main() {
    let seconds: f64 = std::env::args().nth(1).map_or(4.0, |s| s.parse().unwrap());
    let begin = std::time::Instant::now();
    let text = text(20_000);
    let mut rounds = 0;
    let mut sum = 0;
    while begin.elapsed().as_secs_f64() < seconds {
        let counts = count(&text);
        sum += longest(&counts).iter().take(10).map(|(word, count)| word.len() * count).sum::<usize>();
        rounds += 1;
    }
    println!("{rounds} {sum}");
}
