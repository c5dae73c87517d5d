package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/term"
)

// newLogger takes "info", "debug,console" or "warn,json".
func newLogger(w io.Writer, spec string) (zerolog.Logger, error) {
	levelName, format, _ := strings.Cut(spec, ",")
	level, err := zerolog.ParseLevel(levelName)
	if err != nil || level == zerolog.NoLevel {
		return zerolog.Nop(), fmt.Errorf("unknown level %q", levelName)
	}
	switch format {
	case "", "json":
	case "console":
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.TimeOnly, NoColor: !isTerminal(w)}
	default:
		return zerolog.Nop(), fmt.Errorf("unknown format %q: json or console", format)
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger(), nil
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
