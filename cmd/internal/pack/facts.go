package pack

import (
	"cmp"
	"strings"

	"takt/store"
)

// ciVariables are those that say what a CI service has checked out, which is often no branch.
// The first variable that is set counts.
var ciVariables = []struct {
	service                string // is set by this service only
	branch, commit, remote []string
}{
	{
		"GITHUB_ACTIONS", // Gitea and Forgejo too
		[]string{"GITHUB_HEAD_REF", "GITHUB_REF_NAME"},
		[]string{"GITHUB_SHA"},
		[]string{"GITHUB_SERVER_URL"},
	},
	{
		"GITLAB_CI",
		[]string{"CI_MERGE_REQUEST_SOURCE_BRANCH_NAME", "CI_COMMIT_REF_NAME"},
		[]string{"CI_COMMIT_SHA"},
		[]string{"CI_PROJECT_URL"},
	},
	{"JENKINS_URL", []string{"CHANGE_BRANCH", "BRANCH_NAME", "GIT_BRANCH"}, []string{"GIT_COMMIT"}, []string{"GIT_URL"}},
	{"BITRISE_IO", []string{"BITRISE_GIT_BRANCH"}, []string{"BITRISE_GIT_COMMIT", "GIT_CLONE_COMMIT_HASH"}, []string{"GIT_REPOSITORY_URL"}},
	{"CIRCLECI", []string{"CIRCLE_BRANCH"}, []string{"CIRCLE_SHA1"}, []string{"CIRCLE_REPOSITORY_URL"}},
	{"BUILDKITE", []string{"BUILDKITE_BRANCH"}, []string{"BUILDKITE_COMMIT"}, []string{"BUILDKITE_REPO"}},
	{"BITBUCKET_BUILD_NUMBER", []string{"BITBUCKET_BRANCH"}, []string{"BITBUCKET_COMMIT"}, []string{"BITBUCKET_GIT_HTTP_ORIGIN"}},
	{
		"TF_BUILD", // Azure Pipelines
		[]string{"SYSTEM_PULLREQUEST_SOURCEBRANCH", "BUILD_SOURCEBRANCH"},
		[]string{"BUILD_SOURCEVERSION"},
		[]string{"BUILD_REPOSITORY_URI"},
	},
	{"TRAVIS", []string{"TRAVIS_PULL_REQUEST_BRANCH", "TRAVIS_BRANCH"}, []string{"TRAVIS_COMMIT"}, nil},
	{"CM_BUILD_ID", []string{"CM_BRANCH"}, []string{"CM_COMMIT"}, nil}, // Codemagic
	{"CI_XCODE_CLOUD", []string{"CI_BRANCH"}, []string{"CI_COMMIT"}, nil},
	{"CI_PIPELINE_URL", []string{"CI_COMMIT_SOURCE_BRANCH", "CI_COMMIT_BRANCH"}, []string{"CI_COMMIT_SHA"}, []string{"CI_REPO_URL"}}, // Woodpecker
	{"DRONE", []string{"DRONE_SOURCE_BRANCH", "DRONE_BRANCH"}, []string{"DRONE_COMMIT_SHA"}, []string{"DRONE_REMOTE_URL"}},
}

// Facts says where a source comes from: what git knows, and the variables of a CI service for the rest.
// c is nil outside of git.
func Facts(c *Commit, variable func(name string) string) (f store.Facts) {
	if c != nil {
		f = store.Facts{Commit: c.ID, Branch: c.Branch, Remote: c.Remote}
		if c.ID != "" {
			f.Dirty = &c.Dirty
		}
	}
	first := func(names []string) string {
		for _, name := range names {
			if v := variable(name); v != "" {
				return v
			}
		}
		return ""
	}
	for _, ci := range ciVariables {
		if variable(ci.service) == "" {
			continue
		}
		f.Commit = cmp.Or(f.Commit, first(ci.commit))
		f.Branch = cmp.Or(f.Branch, branchOf(first(ci.branch)))
		if f.Remote == "" {
			if f.Remote = first(ci.remote); ci.service == "GITHUB_ACTIONS" {
				f.Remote += "/" + variable("GITHUB_REPOSITORY")
			}
		}
		break
	}
	return usable(f)
}

// usable leaves out what is not of use as a fact.
func usable(all store.Facts) (f store.Facts) {
	for name, value := range map[string]string{"commit": all.Commit, "branch": all.Branch, "remote": all.Remote} {
		if with := f; with.Set(name, value) == nil {
			f = with
		}
	}
	if f.Commit != "" {
		f.Dirty = all.Dirty
	}
	return f
}

// branchOf takes the name of a branch from one that says more.
func branchOf(ref string) string {
	for _, prefix := range []string{"refs/heads/", "refs/tags/", "refs/", "origin/"} {
		if name, ok := strings.CutPrefix(ref, prefix); ok {
			return name
		}
	}
	return ref
}
