package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"takt/store"
)

// NewLogger returns a logger for a spec such as "info", "debug,console" or "warn,json".
// also get each line as JSON.
func NewLogger(w io.Writer, spec string, also ...io.Writer) (zerolog.Logger, error) {
	levelName, format, _ := strings.Cut(spec, ",")
	level, err := zerolog.ParseLevel(levelName)
	if err != nil || level == zerolog.NoLevel {
		return zerolog.Nop(), fmt.Errorf("unknown level %q", levelName)
	}
	switch format {
	case "", "json":
		w = JSONLog{Writer: w}
	case "console":
		text := func(v any) string {
			if raw, ok := v.([]byte); ok { // what is neither text nor number comes as JSON
				v = string(raw)
			}
			return store.Line(fmt.Sprint(v))
		}
		w = zerolog.ConsoleWriter{
			Out: w, TimeFormat: time.TimeOnly, NoColor: !Colour(w),
			FormatMessage: func(v any) string {
				if v == nil {
					return ""
				}
				return text(v)
			},
			FormatFieldValue: text, FormatErrFieldValue: text,
		}
	default:
		return zerolog.Nop(), fmt.Errorf("unknown format %q: json or console", format)
	}
	for _, other := range also {
		w = zerolog.MultiLevelWriter(w, JSONLog{Writer: other})
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger(), nil
}
