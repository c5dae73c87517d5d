package mask

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
)

// Mark stands for what is masked.
const Mark = "***"

// wide is how many bytes of a form decide whether it is compared, and how many must have been
// seen of one before a line break in it counts.
const wide = 8

// Set is the values that are masked. Nil masks nothing.
type Set struct {
	// long has the forms of at least wide bytes, short the others.
	long, short table
}

// New returns a set of values, nil if there are none.
func New(values ...[]byte) *Set {
	var s Set
	for _, value := range values {
		for _, f := range forms(value) {
			if len(f.text) >= wide {
				s.long.forms = append(s.long.forms, f)
			} else {
				s.short.forms = append(s.short.forms, f)
			}
		}
	}
	if len(s.long.forms)+len(s.short.forms) == 0 {
		return nil
	}
	s.long.build()
	s.short.build()
	return &s
}

// String masks a whole text.
func (s *Set) String(text string) string {
	if s == nil {
		return text
	}
	stream := s.Stream()
	out := bytes.Clone(stream.Feed([]byte(text)))
	return string(append(out, stream.Flush()...))
}

// Stream returns a stream that masks the set's values.
func (s *Set) Stream() *Stream {
	if s == nil {
		return nil
	}
	return &Stream{set: s}
}

// at returns how many bytes at the beginning of text belong to a form that begins there, and
// whether that takes more text to say. Without more to come, the beginning of a form counts if
// it is long.
func (s *Set) at(text []byte, last bool) (n int, more bool) {
	n, more = s.long.at(text, last)
	n2, more2 := s.short.at(text, last)
	return max(n, n2), more || more2
}

// table finds forms by their first bytes.
type table struct {
	// forms are sorted.
	forms []form
	// keys are the first width bytes of forms, padded with zeros; bits selects these.
	keys  []uint64
	width int // 0 if there are no forms
	bits  uint64
	// filter has a bit for the hash of each key.
	filter []uint64
	shift  int
}

func (t *table) build() {
	if len(t.forms) == 0 {
		return
	}
	t.width = wide
	for _, f := range t.forms {
		t.width = min(t.width, len(f.text))
	}
	slices.SortFunc(t.forms, func(a, b form) int { return bytes.Compare(a.text, b.text) })
	t.forms = slices.CompactFunc(t.forms, func(a, b form) bool { return a.wrapped == b.wrapped && bytes.Equal(a.text, b.text) })
	t.bits = ^uint64(0) << (64 - 8*t.width)
	size := min(max(bits.Len(uint(64*len(t.forms))), 15), 23) // of the filter, as a power of two
	t.shift, t.filter = 64-size, make([]uint64, 1<<size/64)
	for _, f := range t.forms {
		key := load(f.text) & t.bits
		t.keys = append(t.keys, key)
		h := t.hash(key)
		t.filter[h/64] |= 1 << (h % 64)
	}
}

func (t *table) hash(key uint64) uint64 { return key * 0x9E3779B97F4A7C15 >> t.shift }

// load returns the first eight bytes of a text, in an order that sorts like the text, with zeros
// for those that it does not have.
func load(text []byte) uint64 {
	if len(text) >= 8 {
		return binary.BigEndian.Uint64(text)
	}
	var padded [8]byte
	copy(padded[:], text)
	return binary.BigEndian.Uint64(padded[:])
}

// may reports whether a form can begin with eight bytes.
func (t *table) may(eight uint64) bool {
	if t.width == 0 {
		return false
	}
	h := t.hash(eight & t.bits)
	return t.filter[h/64]&(1<<(h%64)) != 0
}

// at is [Set.at] for the table's forms.
func (t *table) at(text []byte, last bool) (n int, more bool) {
	if t.width == 0 || len(text) < t.width && last {
		return 0, false
	}
	key := load(text) & t.bits
	i, _ := slices.BinarySearch(t.keys, key)
	if len(text) < t.width {
		return 0, i < len(t.keys) && (t.keys[i]^key)>>(64-8*len(text)) == 0
	}
	for ; i < len(t.keys) && t.keys[i] == key; i++ {
		whole := t.forms[i].text
		if !t.forms[i].wrapped && len(whole) >= 2*wide && len(text) >= 2*wide && load(whole[wide:]) != load(text[wide:]) {
			continue // what match would say, but for one call of it
		}
		seen, covered, open := t.forms[i].match(text)
		switch {
		case seen == len(whole):
			n = max(n, covered)
		case !open: // it is another text
		case !last:
			more = true
		case seen >= minLine && 2*seen >= len(whole):
			n = max(n, covered)
		}
	}
	return n, more
}

// match returns how many bytes of the form text begins with, how many of text these take, and
// whether the rest could follow.
func (f form) match(text []byte) (seen, covered int, open bool) {
	for seen < len(f.text) && covered < len(text) {
		if n := common(f.text[seen:], text[covered:]); n > 0 {
			seen, covered = seen+n, covered+n
			continue
		}
		end := lineBreak(text[covered:])
		if !f.wrapped || seen < wide || end == 0 {
			return seen, covered, false
		}
		// One break at most, so that what is kept of a stream is bounded.
		rest := text[covered+end:]
		if len(rest) == 0 || rest[0] != f.text[seen] {
			return seen, covered, len(rest) == 0
		}
		covered += end
	}
	return seen, covered, seen < len(f.text)
}

// common is the length of the longest common beginning.
func common(a, b []byte) int {
	n := min(len(a), len(b))
	i := 0
	for ; i+8 <= n; i += 8 {
		if x := binary.LittleEndian.Uint64(a[i:]) ^ binary.LittleEndian.Uint64(b[i:]); x != 0 {
			return i + bits.TrailingZeros64(x)/8
		}
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

// lineBreak is the length of the line break at the beginning of text; a carriage return at the
// end may become one.
func lineBreak(text []byte) int {
	switch {
	case text[0] == '\n':
		return 1
	case text[0] == '\r' && len(text) == 1:
		return 1
	case text[0] == '\r' && text[1] == '\n':
		return 2
	}
	return 0
}

// Stream masks a text that comes in pieces. Nil changes nothing.
type Stream struct {
	set *Set
	// held is what is not decided yet. The first covered bytes of it are masked in any case.
	held    []byte
	covered int
	// marked is true if the last byte that was decided is masked.
	marked bool
	out    []byte
}

// Feed returns the next part of the masked text. It is valid until the next call.
func (s *Stream) Feed(p []byte) []byte {
	if s == nil {
		return p
	}
	s.held = append(s.held, p...)
	return s.decide(len(s.held), false)
}

// Flush returns the rest of the masked text. What could be the first half of a form, and is no
// shorter than a line that is masked, is masked.
func (s *Stream) Flush() []byte {
	if s == nil {
		return nil
	}
	return s.decide(len(s.held), true)
}

// FlushLines is Flush for the lines that have ended: the rest is kept.
func (s *Stream) FlushLines() []byte {
	if s == nil {
		return nil
	}
	return s.decide(bytes.LastIndexByte(s.held, '\n')+1, true)
}

// HoldsLine reports whether the end of a line is kept.
func (s *Stream) HoldsLine() bool { return s != nil && bytes.IndexByte(s.held, '\n') >= 0 }

// decide decides about the bytes before end, or those of them that need no more text. last means
// that no more text is waited for.
func (s *Stream) decide(end int, last bool) []byte {
	s.out = s.out[:0]
	long, short := &s.set.long, &s.set.short
	plain, i := 0, 0 // held[plain:i] is to be copied
	for ; i < end; i++ {
		candidate := true
		if len(s.held)-i >= wide {
			eight := binary.BigEndian.Uint64(s.held[i:])
			candidate = long.may(eight) || short.may(eight)
		}
		if candidate {
			n, more := s.set.at(s.held[i:], last)
			if more {
				break
			}
			s.covered = max(s.covered, i+n)
		}
		if i >= s.covered {
			s.marked = false
			continue
		}
		s.out = append(s.out, s.held[plain:i]...)
		if !s.marked {
			s.out = append(s.out, Mark...)
		}
		s.marked, plain = true, i+1
	}
	s.out = append(s.out, s.held[plain:i]...)
	s.held = slices.Delete(s.held, 0, i)
	s.covered = max(s.covered-i, 0)
	return s.out
}
