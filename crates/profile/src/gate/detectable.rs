//! The minimum detectable growth of these runs.
//!
//! Input: [`Measurements`] and the [`Report`] on it. Output: for the total and for each function the smallest
//! growth that fails the gate with a power of [`POWER`].
//!
//! The runs themselves are the model of noise. The observed change is removed from them, they are divided
//! again into base and new in up to [`TRIALS_MAX`] permutations, a growth is added to the new side, and the
//! conditions of `judge.rs` are applied: the limit, `min_share`, and the statistics beyond the critical
//! values of the permutation tests. With too few runs for a test the rule of `judge.rs` replaces them.

use std::collections::BTreeMap;

use super::gain::{Gain, Noise};
use super::interval::change;
use super::judge;
use super::measurements::{FunctionSamples, Measurements};
use super::permutations::{Permutations, Values, mean, variance};
use super::verdict::{Options, Report, Strength};

/// Fraction of gates that a growth must fail to count as detectable.
pub const POWER: f64 = 0.8;

/// Most permutations in which to try a growth.
pub const TRIALS_MAX: usize = 100;

/// A growth beyond this factor counts as undetectable.
const GROWTH_MAX: f64 = 1000.0;

/// Relative precision of a growth.
const PRECISION: f64 = 0.01;

/// The smallest growth that fails the gate; `None` if none up to `GROWTH_MAX` does.
#[derive(Clone, Debug, PartialEq)]
pub struct Detectable {
    /// Growth of the program's CPU time.
    pub total: Option<f64>,
    /// Growth of each function's self time, in the order of the input.
    pub functions: Vec<Option<f64>>,
}

/// Decision rule of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Permutation tests.
    Tested,
    /// The rule for too few runs.
    Weak,
}

/// Adds the detectable growths to a report.
pub fn add(measured: &Measurements, report: &mut Report) {
    let by_name: BTreeMap<&str, &FunctionSamples> =
        measured.functions.iter().map(|samples| (samples.name.as_str(), samples)).collect();
    let samples = report.functions.iter().filter_map(|row| by_name.get(row.name.as_str()).copied());
    let tested: Vec<(&FunctionSamples, Gain)> =
        samples.map(|samples| (samples, Gain::of(measured, &samples.own))).collect();
    let functions: Vec<_> = tested.iter().map(|(samples, gain)| (*samples, gain)).collect();
    let options = report.options;
    let permutations = Permutations::of(report.runs.0, report.runs.1, options.seed);
    let rule = if report.strength == Strength::Weak { Rule::Weak } else { Rule::Tested };
    let detectable = Detectable::of(measured, &functions, &permutations, &options, rule);
    report.total_min_detectable = detectable.total;
    for (row, min_detectable) in report.functions.iter_mut().zip(detectable.functions) {
        row.min_detectable = min_detectable;
    }
}

impl Detectable {
    /// The detectable growths of these functions, with the gains that are tested.
    #[must_use]
    pub fn of(
        measured: &Measurements,
        functions: &[(&FunctionSamples, &Gain)],
        permutations: &Permutations,
        options: &Options,
        rule: Rule,
    ) -> Detectable {
        let level = Level::of(measured);
        let trials = Trial::all(measured, &level, permutations);
        let gains: Vec<&Gain> = functions.iter().map(|(_, gain)| *gain).collect();
        let noise = Noise::of(measured, &gains);
        let critical = match rule {
            Rule::Tested => critical_of_family(&noise, &gains, permutations, options.alpha),
            Rule::Weak => 0.0,
        };
        let total_cpu = level.measured.in_unit(&level.measured.totals);
        let critical_of_total = critical_value(&total_cpu, permutations, options.alpha / 2.0);
        let total = smallest(&trials, |trial, growth| {
            let totals: Vec<f64> = trial.grown(&trial.measured.totals, growth);
            let grown = Measurements { totals, ..trial.measured.clone() };
            match rule {
                Rule::Weak => judge::total_grown(&grown, options),
                Rule::Tested => {
                    let cpu = grown.in_unit(&grown.totals);
                    exceeds(&grown, &cpu, options)
                        && trial.reaches(&Values::new(&cpu, None), critical_of_total)
                }
            }
        });
        let of_function = |(samples, gain): &(&FunctionSamples, &Gain)| {
            // Samples of only one side do not show their variance.
            let (base, new) = measured.sides(&samples.own);
            if mean(base) <= 0.0 || mean(new) <= 0.0 {
                return None;
            }
            let own = level.own(measured, gain);
            let cpu = level.measured.in_unit(&own);
            let critical_of_cpu = match rule {
                Rule::Tested => critical_value(&cpu, permutations, options.alpha),
                Rule::Weak => 0.0,
            };
            smallest(&trials, |trial, growth| {
                let before = trial.reordered(&own);
                let own = trial.grown(&before, growth);
                let added = own.iter().zip(&before).map(|(after, before)| after - before);
                let totals = trial.measured.totals.iter().zip(added).map(|(total, added)| total + added);
                let grown = Measurements { totals: totals.collect(), ..trial.measured.clone() };
                let gain = Gain::of(&grown, &own);
                if gain.gained < options.min_share {
                    return false;
                }
                if rule == Rule::Weak {
                    let samples = FunctionSamples { name: String::new(), total: own.clone(), own };
                    return judge::function_grown(&grown, &samples, &gain, options);
                }
                let cpu = grown.in_unit(&own);
                exceeds(&grown, &cpu, options)
                    && trial.reaches(&noise.values(&gain), critical)
                    && trial.reaches(&Values::new(&cpu, None), critical_of_cpu)
            })
        };
        Detectable { total, functions: functions.iter().map(of_function).collect() }
    }
}

/// Whether CPU time grew by more than the limit.
fn exceeds(measured: &Measurements, cpu: &[f64], options: &Options) -> bool {
    let (base, new) = measured.sides(cpu);
    change(mean(base), mean(new)) > options.max_increase
}

/// The runs with the observed change of the total removed.
struct Level {
    measured: Measurements,
}

impl Level {
    fn of(measured: &Measurements) -> Level {
        let cpu = level(measured, &measured.in_unit(&measured.totals));
        let samples = |(cpu, each): (&f64, &f64)| if *each > 0.0 { cpu / each } else { 0.0 };
        let totals = cpu.iter().zip(&measured.per_sample).map(samples).collect();
        // The functions' samples are read from the original.
        Level { measured: Measurements { totals, functions: Vec::new(), ..bare(measured) } }
    }

    /// A function's self samples with its observed change of share removed.
    fn own(&self, measured: &Measurements, gain: &Gain) -> Vec<f64> {
        let shares = level(measured, &gain.shares);
        shares.iter().zip(&self.measured.totals).map(|(share, total)| share.min(1.0) * total).collect()
    }
}

/// The runs without their functions.
fn bare(measured: &Measurements) -> Measurements {
    Measurements {
        base_runs: measured.base_runs,
        totals: measured.totals.clone(),
        per_sample: measured.per_sample.clone(),
        unit: measured.unit,
        functions: Vec::new(),
    }
}

/// The values with the mean of both sides at that of base. Two means were estimated and one is left, so
/// deviations are widened by the lost degree of freedom.
fn level(measured: &Measurements, values: &[f64]) -> Vec<f64> {
    let (base, new) = measured.sides(values);
    let target = mean(base);
    let runs = values.len() as f64;
    let widening = if runs > 2.0 { ((runs - 1.0) / (runs - 2.0)).sqrt() } else { 1.0 };
    let side = |values: &[f64]| {
        let mean = mean(values);
        let factor = if mean > 0.0 { target / mean } else { 1.0 };
        let widened = |value: &f64| (target + (value * factor - target) * widening).max(0.0);
        values.iter().map(widened).collect::<Vec<f64>>()
    };
    [side(base), side(new)].concat()
}

/// The runs, divided into base and new in one permutation.
struct Trial {
    /// Indices of the runs, base first.
    permutation: Vec<usize>,
    /// The new runs, as indices into `permutation`.
    new: Vec<u32>,
    measured: Measurements,
}

impl Trial {
    fn all(measured: &Measurements, level: &Level, permutations: &Permutations) -> Vec<Trial> {
        let step = permutations.len().div_ceil(TRIALS_MAX).max(1);
        let trial = |new: &[u32]| {
            let runs = measured.totals.len();
            let is_new = |run: &usize| new.iter().any(|new| *new as usize == *run);
            let (new, base): (Vec<usize>, Vec<usize>) = (0..runs).partition(is_new);
            let mut trial = Trial {
                new: (base.len() as u32..runs as u32).collect(),
                permutation: [base, new].concat(),
                measured: bare(&level.measured),
            };
            trial.measured.totals = trial.reordered(&level.measured.totals);
            trial.measured.per_sample = trial.reordered(&level.measured.per_sample);
            trial
        };
        permutations.iter().step_by(step).map(trial).collect()
    }

    fn reordered(&self, values: &[f64]) -> Vec<f64> {
        self.permutation.iter().map(|run| values.get(*run).copied().unwrap_or(0.0)).collect()
    }

    /// Values in this permutation, with a growth added to the new ones.
    fn grown(&self, values: &[f64], growth: f64) -> Vec<f64> {
        let factor = |run: usize| if run < self.measured.base_runs { 1.0 } else { 1.0 + growth };
        values.iter().enumerate().map(|(run, value)| value * factor(run)).collect()
    }

    fn reaches(&self, values: &Values, critical: f64) -> bool {
        values.statistic(&self.new) >= critical
    }
}

/// The smallest growth that is detected in [`POWER`] of the trials.
fn smallest(trials: &[Trial], detects: impl Fn(&Trial, f64) -> bool) -> Option<f64> {
    let is_detected = |growth: f64| {
        let detected = trials.iter().filter(|trial| detects(trial, growth)).count();
        !trials.is_empty() && detected as f64 >= POWER * trials.len() as f64
    };
    let (mut low, mut high) = (0.0, 0.01);
    while !is_detected(high) {
        (low, high) = (high, high * 2.0);
        if high > GROWTH_MAX {
            return None;
        }
    }
    while high - low > PRECISION * high {
        let middle = f64::midpoint(low, high);
        if is_detected(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Some(high)
}

/// The statistic that permuted runs reach in at most a fraction `level` of the permutations.
fn critical_value(values: &[f64], permutations: &Permutations, level: f64) -> f64 {
    if !has_spread(values) {
        return 0.0;
    }
    let values = Values::new(values, None);
    let mut largest = LargestNumbers::of(level * permutations.len() as f64);
    permutations.iter().for_each(|permutation| largest.add(values.statistic(permutation)));
    largest.least()
}

/// Whether values differ by more than rounding, which has a statistic, too.
fn has_spread(values: &[f64]) -> bool {
    const ROUNDING: f64 = 1e-9;
    variance(values).sqrt() > ROUNDING * mean(values)
}

/// The statistic by which a function stands out among all: the largest of all functions reaches it in at most
/// half of `alpha` of the permutations (`p_any`), and its `q` is at most `alpha`.
fn critical_of_family(noise: &Noise, gains: &[&Gain], permutations: &Permutations, alpha: f64) -> f64 {
    let functions = gains.iter().filter(|gain| has_spread(gain.values()));
    let functions: Vec<Values> = functions.map(|gain| noise.values(gain)).collect();
    if functions.is_empty() {
        return 0.0;
    }
    let mut of_any = LargestNumbers::of(alpha / 2.0 * permutations.len() as f64);
    let mut of_all = LargestNumbers::of(alpha * permutations.len() as f64);
    for permutation in permutations.iter() {
        let mut any = f64::NEG_INFINITY;
        for values in &functions {
            let statistic = values.statistic(permutation);
            of_all.add(statistic);
            any = any.max(statistic);
        }
        of_any.add(any);
    }
    of_any.least().max(of_all.least())
}

/// The largest of many numbers: a bounded heap.
struct LargestNumbers {
    count: usize,
    numbers: Vec<f64>,
}

impl LargestNumbers {
    /// Keeps as many as `allowed`, and at least one.
    fn of(allowed: f64) -> LargestNumbers {
        LargestNumbers { count: ((allowed + 1e-9) as usize).max(1), numbers: Vec::new() }
    }

    fn add(&mut self, number: f64) {
        self.numbers.push(number);
        if self.numbers.len() >= 4 * self.count + 64 {
            self.cut();
        }
    }

    fn cut(&mut self) {
        if self.numbers.len() > self.count {
            self.numbers.select_nth_unstable_by(self.count, |a, b| b.total_cmp(a));
            self.numbers.truncate(self.count);
        }
    }

    /// The smallest of them.
    fn least(mut self) -> f64 {
        self.cut();
        self.numbers.into_iter().min_by(f64::total_cmp).unwrap_or(f64::INFINITY)
    }
}

#[cfg(test)]
mod tests {
    use super::super::measurements::Unit;
    use super::*;
    use crate::gate::judge;
    use crate::gate::verdict::FunctionState;
    use crate::rng::Rng;

    /// Approximately normal: the sum of twelve uniform numbers (Irwin and Hall).
    fn bell(rng: &mut Rng) -> f64 {
        (0..12).map(|_| rng.within(0, 1 << 30) as f64 / f64::from(1 << 30)).sum::<f64>() - 6.0
    }

    /// Runs of twelve functions, with growths on the new side. Runs differ as a whole, and functions within
    /// each.
    fn runs(rng: &mut Rng, runs: usize, noise: f64, growth: [f64; 12]) -> Measurements {
        let mut functions: Vec<FunctionSamples> = (0..12)
            .map(|index| FunctionSamples { name: format!("f{index}"), own: Vec::new(), total: Vec::new() })
            .collect();
        for run in 0..2 * runs {
            let whole = (noise * bell(rng)).exp();
            for (index, function) in functions.iter_mut().enumerate() {
                let growth = if run >= runs { growth[index] } else { 0.0 };
                let own =
                    150.0 * (index + 1) as f64 * whole * (1.0 + growth) * (0.5 * noise * bell(rng)).exp();
                function.own.push(own.round());
                function.total.push(own.round());
            }
        }
        let totals: Vec<f64> =
            (0..2 * runs).map(|run| functions.iter().map(|function| function.own[run]).sum()).collect();
        Measurements {
            base_runs: runs,
            per_sample: vec![0.001; totals.len()],
            totals,
            unit: Unit::Seconds,
            functions,
        }
    }

    fn judged(measured: &Measurements, options: &Options) -> Report {
        let mut report = judge(measured, options);
        add(measured, &mut report);
        report
    }

    fn is_slower(report: &Report, name: &str) -> bool {
        report.functions.iter().any(|row| row.name == name && matches!(row.state, FunctionState::Slower))
    }

    #[test]
    fn a_detectable_growth_fails_four_of_five_gates() {
        let options = Options::default();
        let mut rng = Rng::new(17);
        for (count, noise) in [(4, 0.02), (5, 0.05), (7, 0.03), (7, 0.08)] {
            // The detectable growth of one set of runs varies like its noise: the promised power is a mean
            // over sets, each tried on fresh runs.
            let (mut gates, mut of_total, mut of_function) = (0, 0, 0);
            for _ in 0..60 {
                let report = judged(&runs(&mut rng, count, noise, [0.0; 12]), &options);
                let row = report.functions.iter().find(|row| row.name == "f7").expect("tested");
                let (total, own) =
                    (report.total_min_detectable.expect("total"), row.min_detectable.expect("f7"));
                let report = judge(&runs(&mut rng, count, noise, [total; 12]), &options);
                of_total += u32::from(report.total_grown);
                let mut growth = [0.0; 12];
                growth[7] = own;
                let report = judge(&runs(&mut rng, count, noise, growth), &options);
                of_function += u32::from(is_slower(&report, "f7"));
                gates += 1;
            }
            let text =
                format!("{count} runs, noise {noise}: total {of_total}, function {of_function} of {gates}");
            for found in [of_total, of_function] {
                assert!((36..=57).contains(&found), "{text}");
            }
        }
    }

    #[test]
    fn less_noise_lowers_the_detectable_growth_down_to_the_limit() {
        let options = Options::default();
        let mut before = f64::INFINITY;
        for noise in [0.2, 0.05, 0.01, 0.0] {
            let report = judged(&runs(&mut Rng::new(3), 7, noise, [0.0; 12]), &options);
            let total = report.total_min_detectable.expect("total");
            assert!(total <= before && total >= options.max_increase, "{noise}: {total} after {before}");
            assert!(
                report
                    .functions
                    .iter()
                    .all(|row| row.min_detectable.is_none_or(|own| own >= options.max_increase))
            );
            before = total;
        }
        assert!(before < options.max_increase * 1.02, "equal runs show all beyond the limit: {before}");
    }

    #[test]
    fn a_faster_program_has_the_same_detectable_growth() {
        let options = Options::default();
        let min_detectable = |growth: f64| {
            let report = judged(&runs(&mut Rng::new(9), 7, 0.03, [growth; 12]), &options);
            report.total_min_detectable.expect("total")
        };
        assert!(
            (min_detectable(-0.4) / min_detectable(0.0) - 1.0).abs() < 0.1,
            "{} {}",
            min_detectable(-0.4),
            min_detectable(0.0)
        );
    }

    #[test]
    fn one_sided_functions_and_sides_without_runs_have_no_detectable_growth() {
        let mut measured = runs(&mut Rng::new(1), 5, 0.02, [0.0; 12]);
        measured.functions[3].own[..5].fill(0.0);
        let report = judged(&measured, &Options::default());
        let row = report.functions.iter().find(|row| row.name == "f3").expect("tested");
        assert_eq!(row.min_detectable, None);
    }

    #[test]
    fn too_few_runs_show_growth_beyond_limit_and_noise_floor() {
        for count in [1, 2] {
            let report = judged(&runs(&mut Rng::new(4), count, 0.01, [0.0; 12]), &Options::default());
            let total = report.total_min_detectable.expect("total");
            assert!((0.2075..0.3).contains(&total), "{count}: {total}");
        }
    }
}
