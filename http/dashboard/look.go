package dashboard

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"math"
	"net/url"
	"strings"
	"time"

	"takt/http/forecast"
	"takt/store"
)

// look is what pages look like: their templates, and the files that they load.
type look struct {
	pages   map[string]*template.Template // each in the frame of layout.html
	assets  map[string]asset
	version string // changes with any of the files
}

// asset is a file that pages load.
type asset struct {
	kind    string
	content []byte
}

// newLook reads the files of directory html. It panics if one is not a template.
func newLook(files fs.FS) *look {
	l := &look{pages: map[string]*template.Template{}, assets: map[string]asset{
		"dash.css": {kind: "text/css; charset=utf-8"}, "dash.js": {kind: "text/javascript; charset=utf-8"}, "icon.svg": {kind: "image/svg+xml"}, "icon-bad.svg": {kind: "image/svg+xml"},
	}}
	frame := template.Must(template.New("layout.html").Funcs(template.FuncMap{
		"ago": ago, "clock": clock, "span": forecast.Span, "rough": forecast.Rough, "size": bytesText, "bytes": func(f float64) string { return bytesText(int64(f)) }, "percent": percent, "badShare": store.ManyFailed, "num": number3, "num2": func(f float64) string { return number3(math.Round(f*100) / 100) }, "some": some,
		"plain": func(s any) string { return plain(fmt.Sprint(s)) }, "clip": clip, "plural": plural, "since": time.Since, "periods": func() any { return periods }, "usual": usualText,
		"list":   func(v ...any) []any { return v },
		"escape": url.PathEscape, "query": url.QueryEscape,
		"reason": func(id string, required bool) reasonField { return reasonField{id, required} },
	}).ParseFS(files, "html/layout.html", "html/parts.html"))
	sum := sha256.New()
	for _, path := range must(fs.Glob(files, "html/*")) {
		content := must(fs.ReadFile(files, path))
		sum.Write(content)
		name := strings.TrimPrefix(path, "html/")
		if a, ok := l.assets[name]; ok {
			l.assets[name] = asset{a.kind, content}
		} else if page := strings.TrimSuffix(name, ".html"); page != "layout" && page != "parts" {
			l.pages[page] = template.Must(template.Must(frame.Clone()).ParseFS(files, path))
		}
	}
	l.version = hex.EncodeToString(sum.Sum(nil))[:12]
	return l
}

// reasonField is the form field for the reason of an act.
type reasonField struct {
	ID       string
	Required bool
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err) // embedded files are part of the program
	}
	return v
}
