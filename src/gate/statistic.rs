//! The studentised difference of two sides, for the observed permutation of the runs and any other.
//!
//! Input: one value for each run. Output: (mean of new − mean of base) / its standard error. The error comes
//! half from the variance of the values within the sides, half from prior knowledge (counting noise, and the
//! variance between runs of this program). With few runs, a variance that is small by chance would otherwise
//! inflate the statistic. Genomics has the same problem, few samples of many genes, and this answer: Smyth
//! 2004 (limma), Tusher et al. 2001 (SAM).

/// The values of one quantity (a function's share, the total) in all runs.
#[derive(Clone, Debug)]
pub struct Values {
    /// Differences from the overall mean, base first.
    centred: Vec<f64>,
    sum_of_squares: f64,
    /// Variance of one value known independently of its side.
    known_variance: Option<f64>,
}

impl Values {
    /// Values of all runs, base first. `known_variance` is the expected variance of a single value; without
    /// it only the sample variance counts.
    #[must_use]
    pub fn new(values: &[f64], known_variance: Option<f64>) -> Values {
        let mean = mean(values);
        let centred: Vec<f64> = values.iter().map(|value| value - mean).collect();
        let sum_of_squares = centred.iter().map(|value| value * value).sum();
        Values { centred, sum_of_squares, known_variance }
    }

    /// The values with inverted sign, to test for a decrease.
    #[must_use]
    pub fn negated(&self) -> Values {
        Values { centred: self.centred.iter().map(|value| -value).collect(), ..self.clone() }
    }

    /// The statistic with `new` as the new runs. 0 if nothing differs.
    #[must_use]
    pub fn statistic(&self, new: &[u32]) -> f64 {
        let runs = self.centred.len() as f64;
        let news = new.len() as f64;
        let bases = runs - news;
        let sum: f64 = new.iter().filter_map(|run| self.centred.get(*run as usize)).sum();
        // The centred values add up to 0, so that the base runs' sum is -sum.
        let (mean_new, mean_base) = (sum / news, -sum / bases);
        let degrees = runs - 2.0;
        let between = news * mean_new * mean_new + bases * mean_base * mean_base;
        let within = if degrees > 0.0 { (self.sum_of_squares - between).max(0.0) / degrees } else { 0.0 };
        let variance = match self.known_variance {
            Some(known) => (within + known) / 2.0,
            None => within,
        };
        let difference = mean_new - mean_base;
        let error = (variance * (1.0 / news + 1.0 / bases)).sqrt();
        // Rounding leaves about 1e-16 of the cancelled values.
        if difference.abs() <= 1e-12 * self.sum_of_squares.sqrt() {
            0.0
        } else {
            difference / error.max(f64::MIN_POSITIVE)
        }
    }
}

/// The mean; 0 without values.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// The sample variance; 0 for fewer than two values.
#[must_use]
pub fn variance(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = mean(values);
    values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / (values.len() as f64 - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_prior_knowledge_it_is_students_t() {
        // Student's two samples: pooled variance, four degrees of freedom.
        let values = Values::new(&[1.0, 2.0, 4.0, 5.0, 6.0, 7.0], None);
        let pooled: f64 = (14.0 / 3.0 + 2.0) / 4.0;
        let expected = (6.0 - 7.0 / 3.0) / (pooled * 2.0 / 3.0).sqrt();
        assert!((values.statistic(&[3, 4, 5]) - expected).abs() < 1e-12);
        assert!((values.statistic(&[0, 1, 2]) + expected).abs() < 1e-12);
        assert!((values.negated().statistic(&[3, 4, 5]) + expected).abs() < 1e-12);
    }

    #[test]
    fn known_noise_limits_the_effect_of_equal_values() {
        let values = [1.0, 1.0, 1.0, 1.1, 1.1, 1.1];
        let sure = Values::new(&values, None).statistic(&[3, 4, 5]);
        let wary = Values::new(&values, Some(0.01)).statistic(&[3, 4, 5]);
        assert!(sure > 1e6 && wary < 2.0, "{sure} {wary}");
    }

    #[test]
    fn equal_runs_have_no_difference() {
        let values = Values::new(&[0.3; 6], None);
        assert_eq!(values.statistic(&[3, 4, 5]), 0.0);
        assert_eq!(Values::new(&[0.0; 2], Some(0.0)).statistic(&[1]), 0.0);
        assert!(Values::new(&[1.0, 2.0], None).statistic(&[1]) > 1e6, "one against one has no spread");
    }

    #[test]
    fn computes_means_and_variances() {
        assert_eq!((mean(&[]), mean(&[1.0, 3.0])), (0.0, 2.0));
        assert_eq!((variance(&[1.0]), variance(&[1.0, 3.0])), (0.0, 2.0));
    }
}
