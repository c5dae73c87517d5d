package edge

import (
	"bytes"
	"strings"
)

// leastRandom is how many characters of a key must be left beside words, years, sequences and
// repeats. Eight random ones of [A-Za-z0-9_-] are 48 bits.
const leastRandom = 8

// keyWords are words of keys that people make up.
const keyWords = "password passwort passwd secret geheim admin administrator takt fleet farm key keys api token test tests testing example sample demo dummy " +
	"change changeme letmein welcome default login master root user worker build builds builder submit operator operators company controller server local " +
	"production prod staging stage development devel dragon monkey football sunshine princess iloveyou hello world please this that the for and not very long " +
	"random private public shared correct horse battery staple foo bar baz qwerty qwertz qwertyuiop azerty asdf asdfgh zxcvbn yxcvbn abc xyz"

// Guessable says why a key is easy to guess, "" if these rules don't find it so. They find repeats,
// sequences such as 0123 or dcba, years and common words, and keys with few different characters. A
// random key of 16 characters or more is never found, but for bad luck of less than one in 10^9.
func Guessable(key string) string {
	if !VariedKey(key) {
		return "it has fewer than 8 different characters"
	}
	rest := []byte(key)
	for i, b := range rest {
		if b >= 'A' && b <= 'Z' {
			rest[i] = b + 'a' - 'A'
		}
	}
	if piece := strings.Index(key[1:]+key, key) + 1; piece <= len(key)/2 {
		return "it repeats a part of itself"
	}
	for word := range strings.FieldsSeq(keyWords) {
		if bytes.Contains(rest, []byte(word)) {
			rest = bytes.ReplaceAll(rest, []byte(word), []byte{0})
		}
	}
	random, run, step := 0, 0, 0
	for i, b := range rest {
		joins := (b == '-' || b == '_' || b == ' ') && (i > 0 && rest[i-1] == 0 || i+1 < len(rest) && rest[i+1] == 0) // a word and something else
		if b == 0 || joins {
			run, step = 0, 0
			continue
		}
		random++
		now := 2 // no step of a sequence
		if i > 0 && run > 0 {
			now = int(b) - int(rest[i-1])
		}
		switch {
		case run > 0 && now >= -1 && now <= 1 && (run == 1 || now == step):
			run, step = run+1, now
		case run > 0 && now >= -1 && now <= 1:
			run, step = 2, now
		default:
			run, step = 1, 2
		}
		switch { // a sequence of four or more counts nothing
		case run == 4:
			random -= 4
		case run > 4:
			random--
		}
	}
	for i := 0; i+4 <= len(rest); i++ {
		if year := string(rest[i : i+4]); (year[:2] == "19" || year[:2] == "20") && year[2] >= '0' && year[2] <= '9' && year[3] >= '0' && year[3] <= '9' {
			random -= 4
			i += 3
		}
	}
	if random < leastRandom {
		return "it is made of words, sequences, repeats or years"
	}
	return ""
}
