package main

import (
	"net/http"
	"strings"
)

// holdGit keeps git waiting for its server until hold is closed.
func holdGit(hold <-chan struct{}) func(http.ResponseWriter, *http.Request) bool {
	return func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, ".git/") {
			select {
			case <-hold:
			case <-r.Context().Done():
				return true
			}
		}
		return false
	}
}
