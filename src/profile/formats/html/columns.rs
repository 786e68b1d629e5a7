//! Columns of numbers as bytes: each number little-endian in base 128 ("varint"), plain, as the difference to
//! the previous number, or as the distance to its own index. Adjacent numbers are similar, so that gzip
//! compresses well.

/// Largest number that a script represents exactly.
pub(super) const NUMBER_MAX: u64 = (1 << 53) - 1;

/// Encoding of the numbers of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Unchanged.
    Plain,
    /// The difference to the previous number, with its sign in the lowest bit ("zigzag").
    Delta,
    /// The distance from a number to its index.
    Back,
}

impl Form {
    fn name(self) -> &'static str {
        match self {
            Form::Plain => "plain",
            Form::Delta => "delta",
            Form::Back => "back",
        }
    }
}

/// Concatenated columns.
#[derive(Default)]
pub(super) struct Columns {
    list: Vec<(&'static str, &'static str, usize, usize)>,
    bytes: Vec<u8>,
}

impl Columns {
    /// Adds a column.
    pub(super) fn add(&mut self, name: &'static str, form: Form, numbers: impl IntoIterator<Item = u64>) {
        let start = self.bytes.len();
        let (mut count, mut before) = (0u64, 0u64);
        for number in numbers {
            let number = number.min(NUMBER_MAX);
            self.push(match form {
                Form::Plain => number,
                Form::Delta if number >= before => (number - before) << 1,
                Form::Delta => ((before - number - 1) << 1) | 1,
                Form::Back => count.saturating_sub(number),
            });
            before = number;
            count += 1;
        }
        self.list.push((name, form.name(), count as usize, self.bytes.len() - start));
    }

    fn push(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    /// Name, form, numbers and bytes of each column.
    pub(super) fn list(&self) -> &[(&'static str, &'static str, usize, usize)] {
        &self.list
    }

    /// All columns.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(form: Form, numbers: &[u64]) -> Vec<u8> {
        let mut columns = Columns::default();
        columns.add("a", form, numbers.iter().copied());
        assert_eq!(columns.list(), [("a", form.name(), numbers.len(), columns.bytes().len())]);
        columns.bytes().to_vec()
    }

    #[test]
    fn numbers_have_variable_length() {
        assert_eq!(bytes(Form::Plain, &[0, 127, 128, 300]), [0, 127, 0x80, 1, 0xac, 2]);
        assert_eq!(bytes(Form::Delta, &[5, 5, 4, 70]), [10, 0, 1, 0x84, 1]);
        assert_eq!(bytes(Form::Back, &[0, 0, 1, 1]), [0, 1, 1, 2]);
        assert_eq!(bytes(Form::Plain, &[u64::MAX]), bytes(Form::Plain, &[NUMBER_MAX]));
        assert_eq!(bytes(Form::Delta, &[0, u64::MAX, 0]).len(), 17);
    }
}
