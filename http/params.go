package http

import (
	"path"

	"takt/store"
)

func buildNotFound() error { return store.NewError(store.NotFound, "Build not found") }

func workerNotFound() error { return store.NewError(store.NotFound, "Worker not found") }

// Names of a build's files in storage.
func sourceName(id string) string { return path.Join("builds", id, "source.zip") }
func certsName(id string) string  { return path.Join("builds", id, "certs.zip") }
func resultName(id string, p store.Platform) string {
	return path.Join("builds", id, "result"+p.ResultExt())
}
