package cli

import (
	"io"
	"time"

	"github.com/schollz/progressbar/v3"

	"takt/http/client"
)

// Bar shows how far a transfer is, on a terminal only.
type Bar struct {
	w     io.Writer
	label string
	bar   *progressbar.ProgressBar
}

// NewBar returns a bar for w, one that shows nothing if w is no terminal or
// quiet is set.
func NewBar(w io.Writer, label string, quiet bool) *Bar {
	if quiet || !Terminal(w) {
		w = nil
	}
	return &Bar{w: w, label: label}
}

// Progress is for a transfer to call.
func (b *Bar) Progress() client.Progress {
	if b.w == nil {
		return nil
	}
	return b.set
}

func (b *Bar) set(done, total int64) {
	if b.bar == nil {
		b.bar = progressbar.NewOptions64(total,
			progressbar.OptionSetWriter(b.w),
			progressbar.OptionSetDescription(b.label),
			progressbar.OptionShowBytes(true),
			progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionClearOnFinish(),
			progressbar.OptionFullWidth(),
		)
	}
	if total >= 0 && b.bar.GetMax64() != total {
		b.bar.ChangeMax64(total)
	}
	_ = b.bar.Set64(done) // a terminal that is gone
}

// Done removes the bar.
func (b *Bar) Done() {
	if b.bar != nil {
		_ = b.bar.Finish()
	}
}
