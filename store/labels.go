package store

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Labels are the labels that a submitter gives a build. Nil and empty are the same.
type Labels map[string]string

// CacheLabel names what a build can reuse of an earlier build on the same worker. A
// build goes first to a worker that recently finished a build with the same value.
const CacheLabel = "cache"

// The limits of labels: how many, and the bytes of a name and of a value.
const (
	MaxLabels     = 32
	MaxLabelName  = 63
	MaxLabelValue = 255
)

// Cache is the value of the label "cache", "" if there is none.
func (l Labels) Cache() string { return l[CacheLabel] }

// ParseLabels reads a JSON object of strings; empty text and null are no labels.
// Its error is InvalidArgument and may be shown.
func ParseLabels(text string) (Labels, error) { return parseLabels(text, false) }

// parseLabels leaves out reserved labels if strip is true.
func parseLabels(text string, strip bool) (Labels, error) {
	if trimmed := strings.TrimSpace(text); trimmed == "" || trimmed == "null" {
		return nil, nil
	}
	// The decoder reads token by token, because a map would hide a duplicate name.
	d := json.NewDecoder(strings.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errLabels("must be a JSON object of strings")
	}
	l := Labels{}
	for d.More() {
		name, _ := d.Token()
		value, err := d.Token()
		n, isName := name.(string)
		v, isText := value.(string)
		if err != nil || !isName || !isText {
			return nil, errLabels("must be a JSON object of strings")
		}
		if strip && Reserved(n) {
			continue
		}
		if _, twice := l[n]; twice {
			return nil, errLabels(fmt.Sprintf("%q is there twice", n))
		}
		if err := l.Set(n, v); err != nil {
			return nil, err
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, errLabels("must be a JSON object of strings")
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errLabels("must be one JSON object")
	}
	return l, nil
}

// Set adds or replaces a label. Its error is InvalidArgument and may be shown. After an
// error nothing is changed.
func (l Labels) Set(name, value string) error {
	switch _, known := l[name]; {
	case !validLabelName(name):
		return errLabels(fmt.Sprintf("names are 1 to %d of letters, digits and _ . - /", MaxLabelName))
	case len(value) > MaxLabelValue || !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl):
		return errLabels(fmt.Sprintf("a value is at most %d bytes of text on one line", MaxLabelValue))
	case !known && len(l) == MaxLabels:
		return errLabels(fmt.Sprintf("at most %d", MaxLabels))
	}
	l[name] = value
	return nil
}

func validLabelName(name string) bool {
	if name == "" || len(name) > MaxLabelName {
		return false
	}
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("_.-/", c) >= 0:
		default:
			return false
		}
	}
	return true
}

func errLabels(text string) error { return NewError(InvalidArgument, "labels: "+text) }
