// Package mask replaces secret values in what a build prints: a [Set] knows the values and the
// forms in which programs print them, a [Stream] masks output that comes in pieces of any size.
//
// A value is masked as it is, without the white space around it, and also as each of its lines
// of at least 8 bytes, in base64 (standard and URL alphabet, at any offset within longer text, with
// line breaks), escaped for URLs, JSON and shells, and in hexadecimal. Every byte that belongs to
// one of these is covered, also where they overlap; each covered run becomes three asterisks. So
// the result does not depend on how the output was cut into pieces.
//
// What can't be masked is in docs/security.md.
//
// # State
//
// A Set is immutable. A Stream keeps the end of its input from the first byte at which the
// beginning of a form stands: at most about the longest form.
//
// # Concurrency
//
// A Set may be used by many, a Stream by one.
package mask
