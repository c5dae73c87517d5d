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
	count bool // things, not bytes
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

// NewCountBar is NewBar for things that are counted.
func NewCountBar(w io.Writer, label string, quiet bool) *Bar {
	b := NewBar(w, label, quiet)
	b.count = true
	return b
}

// Show sets how far it is, and what is said about it.
func (b *Bar) Show(done, total int64, label string) {
	if b.w == nil || total == 0 {
		return
	}
	b.label = label
	b.set(done, total)
	b.bar.Describe(label)
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
		options := []progressbar.Option{
			progressbar.OptionSetWriter(b.w),
			progressbar.OptionSetDescription(b.label),
			progressbar.OptionShowBytes(!b.count),
			progressbar.OptionThrottle(100 * time.Millisecond),
			progressbar.OptionClearOnFinish(),
			progressbar.OptionFullWidth(),
		}
		if b.count {
			options = append(options, progressbar.OptionShowCount())
		}
		b.bar = progressbar.NewOptions64(total, options...)
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
