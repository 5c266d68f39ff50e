//! Splits a Rust file into two views of the same shape: its code and its comments.
//!
//! Each view is blank where the other has text and keeps line breaks, so a line number means the same in both. The scanner knows
//! only as much of the lexical grammar as it needs to tell code, comments and literals apart (Rust reference, "Tokens").

/// The two views.
pub(crate) struct Code {
    /// The code, with comments and the contents of string and character literals blank.
    pub(crate) code: String,
    /// The comments, with everything else blank.
    pub(crate) comments: String,
}

/// An identifier or keyword of the code.
pub(crate) struct Word<'a> {
    pub(crate) text: &'a str,
    /// Counted from one.
    pub(crate) line: usize,
    /// The code that follows, without leading white space.
    pub(crate) rest: &'a str,
}

impl Code {
    /// Splits `text`. An unterminated string or comment reaches to the end of the file.
    pub(crate) fn scan(text: &str) -> Self {
        let mut scanner =
            Scanner { input: text.chars().collect(), at: 0, code: String::new(), comments: String::new() };
        while scanner.at < scanner.input.len() {
            scanner.step();
        }
        Self { code: scanner.code, comments: scanner.comments }
    }

    /// Iterates over all words of the code, in order.
    pub(crate) fn words(&self) -> impl Iterator<Item = Word<'_>> {
        self.code
            .split('\n')
            .enumerate()
            .scan(0, |offset, (number, line)| {
                let begin = *offset;
                *offset += line.len() + 1;
                Some(words_of(&self.code, begin, line, number + 1))
            })
            .flatten()
    }
}

fn words_of<'a>(code: &'a str, begin: usize, line: &'a str, number: usize) -> Vec<Word<'a>> {
    let mut words = Vec::new();
    let mut rest = line;
    while let Some(start) = rest.find(is_word) {
        let word = &rest[start..];
        let end = word.find(|letter| !is_word(letter)).unwrap_or(word.len());
        rest = &word[end..];
        let after = begin + line.len() - rest.len();
        words.push(Word { text: &word[..end], line: number, rest: code[after..].trim_start() });
    }
    words
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

struct Scanner {
    input: Vec<char>,
    at: usize,
    code: String,
    comments: String,
}

/// The view that the next characters belong to.
#[derive(Clone, Copy)]
enum View {
    Code,
    Comment,
    Neither,
}

impl Scanner {
    fn step(&mut self) {
        match (self.peek(0), self.peek(1)) {
            (Some('/'), Some('/')) => self.line_comment(),
            (Some('/'), Some('*')) => self.block_comment(),
            (Some('"'), _) => self.string(),
            (Some('\''), _) => self.quote(),
            (Some(letter), _) if is_word(letter) => self.word(),
            _ => self.take(1, View::Code),
        }
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.input.get(self.at + ahead).copied()
    }

    fn take(&mut self, count: usize, view: View) {
        for &letter in self.input.iter().skip(self.at).take(count) {
            let blank = if letter == '\n' { '\n' } else { ' ' };
            self.code.push(if matches!(view, View::Code) { letter } else { blank });
            self.comments.push(if matches!(view, View::Comment) { letter } else { blank });
        }
        self.at = (self.at + count).min(self.input.len());
    }

    fn line_comment(&mut self) {
        while self.peek(0).is_some_and(|letter| letter != '\n') {
            self.take(1, View::Comment);
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0_usize;
        loop {
            match (self.peek(0), self.peek(1)) {
                (Some('/'), Some('*')) => {
                    depth += 1;
                    self.take(2, View::Comment);
                }
                (Some('*'), Some('/')) => {
                    depth -= 1;
                    self.take(2, View::Comment);
                }
                (Some(_), _) => self.take(1, View::Comment),
                (None, _) => return,
            }
            if depth == 0 {
                return;
            }
        }
    }

    fn string(&mut self) {
        self.take(1, View::Code);
        loop {
            match self.peek(0) {
                Some('\\') => self.take(2, View::Neither),
                Some('"') => return self.take(1, View::Code),
                Some(_) => self.take(1, View::Neither),
                None => return,
            }
        }
    }

    /// Scans a character literal, or the tick of a lifetime.
    fn quote(&mut self) {
        self.take(1, View::Code);
        if self.peek(0) == Some('\\') {
            self.take(2, View::Neither);
            while self.peek(0).is_some_and(|letter| letter != '\'') {
                self.take(1, View::Neither);
            }
            self.take(1, View::Code);
        } else if self.peek(1) == Some('\'') {
            self.take(1, View::Neither);
            self.take(1, View::Code);
        }
    }

    /// Scans a word, and the raw string it opens if it is such a prefix.
    fn word(&mut self) {
        let begin = self.at;
        while self.peek(0).is_some_and(is_word) {
            self.take(1, View::Code);
        }
        let prefix: String = self.input[begin..self.at].iter().collect();
        if matches!(prefix.as_str(), "r" | "br" | "cr") {
            let hashes = self.input.iter().skip(self.at).take_while(|&&letter| letter == '#').count();
            if self.peek(hashes) == Some('"') {
                self.raw_string(hashes);
            }
        }
    }

    fn raw_string(&mut self, hashes: usize) {
        self.take(hashes + 1, View::Code);
        while self.at < self.input.len() {
            let closes = (1..=hashes).all(|ahead| self.peek(ahead) == Some('#'));
            if self.peek(0) == Some('"') && closes {
                return self.take(hashes + 1, View::Code);
            }
            self.take(1, View::Neither);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<(String, usize)> {
        Code::scan(text).words().map(|word| (word.text.to_owned(), word.line)).collect()
    }

    #[test]
    fn comments_and_literals_hold_no_words() {
        let text = concat!(
            "// unsafe\n",
            "/* unsafe /* nested */ unsafe */ one\n",
            "\"unsafe \\\" unsafe\" two\n",
            "r#\"unsafe \" unsafe\"# three br##\"x\"# unsafe\"##\n",
            "'u' '\\'' b'\\\\' four<'five>\n",
        );
        let only: Vec<_> = words(text).into_iter().filter(|(word, _)| word.len() > 2).collect();
        let expected = [("one", 2), ("two", 3), ("three", 4), ("four", 5), ("five", 5)];
        assert_eq!(only, expected.map(|(word, line)| (word.to_owned(), line)));
    }

    #[test]
    fn both_views_keep_the_shape_of_the_file() {
        let text = "a // é\n\"ü\n\" b\n/* x\ny */ c";
        let code = Code::scan(text);
        assert_eq!(code.code.lines().count(), text.lines().count());
        assert_eq!(code.comments.lines().count(), text.lines().count());
        assert_eq!(code.comments.lines().next(), Some("  // é"));
    }

    #[test]
    fn what_never_ends_reaches_to_the_end() {
        for text in ["\"a", "r#\"a\"", "/* a", "'\\", "'"] {
            assert_eq!(Code::scan(text).code.chars().count(), text.chars().count(), "{text}");
        }
    }

    #[test]
    fn a_word_knows_what_follows() {
        let code = Code::scan("unsafe\n  { x }");
        assert!(code.words().next().unwrap().rest.starts_with("{ x }"));
    }
}
