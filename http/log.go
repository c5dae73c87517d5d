package http

import (
	"log" //nolint:depguard // net/http knows no other logger

	"github.com/rs/zerolog"
)

// serverLog gives net/http's own complaints (broken connections, mostly) to
// our logger.
func serverLog(l zerolog.Logger) *log.Logger { return log.New(lineWriter{l}, "", 0) }

type lineWriter struct{ log zerolog.Logger }

func (w lineWriter) Write(p []byte) (int, error) {
	w.log.Debug().Str("source", "net/http").Msg(string(p))
	return len(p), nil
}
