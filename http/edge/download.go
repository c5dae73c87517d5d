package edge

import (
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"takt/store"
)

// transferPiece is how many bytes of a download are sent between two moves of the write
// deadline. Each piece must be sent within Config.StallTimeout.
const transferPiece = 256 << 10

// Download is a file to be sent.
type Download struct {
	// Content should be an *os.File where possible, so that the kernel can copy it (sendfile).
	Content     io.ReadSeeker
	Digest      [32]byte
	ContentType string
	Name        string // the file name offered to the client
	Cache       string // Cache-Control; "" lets the client store the file and revalidate it
	Moved       func(now time.Time)
}

// SendDownload replies with d: whole, a range of it, or 304. Errors: RangeNotSatisfied,
// PreconditionFailed, and http.ErrAbortHandler if sending failed, for which the caller must
// abort the connection.
func (s *Server) SendDownload(c echo.Context, d Download) error {
	h := c.Response().Header()
	h.Set("Content-Type", d.ContentType)
	h.Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", d.Name)) // ids need no escapes
	h.Set("ETag", `"`+hex.EncodeToString(d.Digest[:])+`"`)
	h.Set("Repr-Digest", "sha-256=:"+base64.StdEncoding.EncodeToString(d.Digest[:])+":")
	h.Set("Cache-Control", cmp.Or(d.Cache, "private, no-cache"))
	w := &downloadWriter{
		ResponseWriter: c.Response().Writer, conn: http.NewResponseController(c.Response().Writer),
		seen: c.Response(), stall: s.Config.StallTimeout, moved: d.Moved,
		pace: pace{least: s.Config.LeastRate, grace: s.Config.LeastRateGrace},
	}
	normalizeRange(c.Request())
	http.ServeContent(w, c.Request(), "", time.Time{}, d.Content)
	switch w.refused {
	case http.StatusRequestedRangeNotSatisfiable:
		return store.NewError(store.RangeNotSatisfied, "The file has none of the bytes asked for")
	case http.StatusPreconditionFailed:
		return store.NewError(store.PreconditionFailed, "The file is not the one that If-Match names")
	}
	if w.err != nil {
		level := zerolog.DebugLevel // the client left
		if refused := (*store.Error)(nil); errors.As(w.err, &refused) {
			level = zerolog.WarnLevel // storage failed, or what it has is damaged
		}
		s.Log.WithLevel(level).Err(w.err).Str("route", c.Path()).Str("request_id", RequestID(c)).
			Int64("bytes", w.seen.Size).Msg("download broke off")
		return http.ErrAbortHandler
	}
	_ = w.conn.SetWriteDeadline(time.Now().Add(writeTimeout)) // for the last buffer
	return nil
}

// normalizeRange adjusts the Range header where ServeContent differs from RFC 9110,
// section 14.2: a range of a unit other than bytes is ignored, and so is any range of a
// HEAD request.
func normalizeRange(r *http.Request) {
	unit, ranges, _ := strings.Cut(r.Header.Get("Range"), "=")
	if r.Method != http.MethodGet || !strings.EqualFold(unit, "bytes") { // unit names have no case
		r.Header.Del("Range")
		return
	}
	r.Header.Set("Range", "bytes="+withoutEmptySuffixes(ranges))
}

// withoutEmptySuffixes removes the ranges "-0" (the last 0 bytes) from a list of byte
// ranges, because RFC 9110 calls them unsatisfiable and ServeContent does not. If no
// range is left, it returns one that can't be satisfied.
func withoutEmptySuffixes(ranges string) string {
	if !strings.Contains(ranges, "-0") {
		return ranges
	}
	list := slices.DeleteFunc(strings.Split(ranges, ","), func(r string) bool {
		n, suffix := strings.CutPrefix(strings.TrimSpace(r), "-")
		return suffix && n != "" && strings.Trim(n, "0") == ""
	})
	if len(list) == 0 {
		return strconv.FormatInt(math.MaxInt64, 10) + "-"
	}
	return strings.Join(list, ",")
}

// downloadWriter writes a download to net/http's writer, because echo's would prevent
// sendfile. It records status and size in echo's.
type downloadWriter struct {
	http.ResponseWriter
	conn  *http.ResponseController
	seen  *echo.Response
	stall time.Duration
	pace  pace
	moved func(now time.Time)
	renew time.Time
	err   error
	// refused is a status for which the caller replies with a problem instead: the range
	// can't be satisfied (416), or a precondition failed (412).
	refused int
}

func (w *downloadWriter) WriteHeader(status int) {
	if status == http.StatusRequestedRangeNotSatisfiable || status == http.StatusPreconditionFailed {
		w.refused = status
		return
	}
	w.seen.Status, w.seen.Committed = status, true
	w.ResponseWriter.WriteHeader(status)
}

func (w *downloadWriter) Write(p []byte) (int, error) {
	if w.refused != 0 {
		return len(p), nil
	}
	w.move()
	begun := time.Now()
	n, err := w.ResponseWriter.Write(p)
	return n, w.note(int64(n), begun, err)
}

// ReadFrom is called by ServeContent's copy. It sends piece by piece, each with one sendfile,
// and between pieces moves the write deadline and checks the client's pace.
func (w *downloadWriter) ReadFrom(src io.Reader) (total int64, err error) {
	to, ok := w.ResponseWriter.(io.ReaderFrom)
	all, limited := src.(*io.LimitedReader)
	if !ok || !limited {
		total, err = io.Copy(struct{ io.Writer }{w}, src)
		return total, w.note(0, time.Now(), err)
	}
	for all.N > 0 {
		w.move()
		begun := time.Now()
		n, err := to.ReadFrom(&io.LimitedReader{R: all.R, N: min(all.N, transferPiece)})
		total += n
		all.N -= n
		if err = w.note(n, begun, err); err != nil || n == 0 {
			return total, err
		}
	}
	return total, nil
}

var errSlowReader = errors.New("the client reads too slowly")

// note adds the n bytes that were sent since begun.
func (w *downloadWriter) note(n int64, begun time.Time, err error) error {
	w.seen.Size += n
	if err == nil && w.pace.tooSlow(n, time.Since(begun)) {
		err = errSlowReader
	}
	if w.err == nil {
		w.err = err
	}
	return err
}

// move gives the client time for the next piece.
func (w *downloadWriter) move() {
	now := time.Now()
	if now.After(w.renew) {
		w.renew = now.Add(renewal(w.stall))
		_ = w.conn.SetWriteDeadline(now.Add(w.stall)) // fails on a dead connection only
	}
	if w.moved != nil {
		w.moved(now)
	}
}
