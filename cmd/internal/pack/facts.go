package pack

import (
	"cmp"
	"net/url"
	"regexp"
	"strings"
	"unicode/utf8"

	"takt/http/client"
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
func Facts(c *Commit, variable func(name string) string) (f client.Facts) {
	if c != nil {
		f = client.Facts{Commit: c.ID, Branch: c.Branch, Remote: c.Remote}
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
	// What is not of use as a fact is none.
	if !ValidCommit(f.Commit) {
		f.Commit, f.Dirty = "", nil
	}
	if !ValidBranch(f.Branch) {
		f.Branch = ""
	}
	f.Remote = PublicRemote(f.Remote)
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

var commitID = regexp.MustCompile(`^[0-9a-fA-F]{7,64}$`)

// ValidCommit reports whether s is the id of a commit, or the first seven or more digits of one.
func ValidCommit(s string) bool { return commitID.MatchString(s) }

// maxBranch and maxRemote are the longest of each, in bytes.
const maxBranch, maxRemote = 255, 512

// ValidBranch reports whether a controller takes s as the name of a branch.
func ValidBranch(s string) bool { return oneLine(s, maxBranch) }

func oneLine(s string, most int) bool {
	return s != "" && len(s) <= most && utf8.ValidString(s) && !strings.ContainsFunc(s, store.Controls)
}

// scpLike is how ssh names a repository: user@host:path.
var scpLike = regexp.MustCompile(`^(?:[\w.-]+@)?[\w.-]+:[^:@][^@]*$`)

// PublicRemote returns the URL of a remote without what may be a secret: password, token, query. It
// returns "" for one that is not on a network, and where it can't tell what is secret.
func PublicRemote(remote string) string {
	if !oneLine(remote, 4*maxRemote) {
		return ""
	}
	if !strings.Contains(remote, "://") {
		if scpLike.MatchString(remote) && len(remote) <= maxRemote {
			return remote
		}
		return ""
	}
	u, err := url.Parse(remote)
	if err != nil || u.Host == "" {
		return ""
	}
	switch u.Scheme {
	case "ssh", "git+ssh", "ssh+git":
		if u.User != nil { // the user is git, or such
			u.User = url.User(u.User.Username())
		}
	case "http", "https", "git", "ftp", "ftps":
		u.User = nil // which may be a token alone
	default:
		return ""
	}
	u.RawQuery, u.ForceQuery, u.Fragment, u.RawFragment = "", false, "", ""
	if text := u.String(); len(text) <= maxRemote {
		return text
	}
	return ""
}
