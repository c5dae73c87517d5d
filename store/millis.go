package store

import "time"

// Millis is a time as integer milliseconds since 1970 UTC. A nil *Millis is null.
type Millis int64

// NewMillis returns t as Millis, nil for the zero time.
func NewMillis(t time.Time) *Millis {
	if t.IsZero() {
		return nil
	}
	m := Millis(t.UnixMilli())
	return &m
}

// Time returns m as a UTC time.
func (m Millis) Time() time.Time { return time.UnixMilli(int64(m)).UTC() }
