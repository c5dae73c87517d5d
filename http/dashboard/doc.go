// Package dashboard serves takt's pages for people: their sessions, forms, templates, assets,
// plots and streams of changes. An action on a page calls the handler of an endpoint, so it
// does the same as the API. cmd/takt adds the routes to those of package http, which does not
// depend on this package.
//
// # State
//
// None that must survive a restart: the figures of the last day for plots ([History]), the
// last data of each page, and the pages that are open. Sessions are cookies.
//
// # Failure
//
// While the database is unavailable, a page shows its last data, or a note that it will
// appear. A page that takes too long to read counts as one that can't be read.
//
// # Concurrency
//
// Routes may be served by any number of goroutines. A few pages are read at once; the viewers
// of a page share its updates.
package dashboard
