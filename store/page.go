package store

import (
	"encoding/base64"
	"encoding/json"
)

// Page selects a part of a list.
type Page struct {
	// After continues after the row at this position; "" begins with the first row.
	After Cursor
	// Until ends the page with the row at this position; "" does not.
	Until Cursor
	// Skip is how many rows to pass over, Limit how many to return at most; 0 means all.
	Skip, Limit int
}

// Cursor is the position of a row in a list, by the values that order it: rows added or
// removed elsewhere don't move it. It is opaque to clients, which only send it back. "" is the
// position before the first row.
type Cursor string

// cursorVersion is the first element of a cursor's content. A change of the format or of a
// list's order needs another one.
const cursorVersion = 1

// NewCursor returns the position of a row in the named list, whose rows are ordered by keys.
func NewCursor(list string, keys ...any) Cursor {
	raw, err := json.Marshal(append([]any{cursorVersion, list}, keys...))
	if err != nil {
		panic(err) // keys are numbers, texts and times
	}
	return Cursor(base64.RawURLEncoding.EncodeToString(raw))
}

// Keys sets keys to those of the row in the named list. It leaves them as they are for "".
// Error: InvalidArgument for an invalid cursor, or for one of another list.
func (c Cursor) Keys(list string, keys ...any) error {
	if c == "" {
		return nil
	}
	var version int
	var name string
	var parts []json.RawMessage
	raw, err := base64.RawURLEncoding.DecodeString(string(c))
	if err != nil || json.Unmarshal(raw, &parts) != nil || len(parts) != 2+len(keys) {
		return errCursor()
	}
	for i, to := range append([]any{&version, &name}, keys...) {
		if string(parts[i]) == "null" || json.Unmarshal(parts[i], to) != nil {
			return errCursor()
		}
		if s, ok := to.(*string); ok {
			*s = Text(*s)
		}
	}
	if version != cursorVersion || name != list {
		return errCursor()
	}
	return nil
}

func errCursor() error {
	return NewError(InvalidArgument, "Invalid cursor: take it from the previous page, with the same filter and order")
}
