package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// clients are the programs that talk to Docker and to the cluster.
var clients = []string{"docker", "kind", "kubectl", "helm"}

// contained tells whether commands have to run in a container, for want of root on the machine.
func (p *place) contained() bool { return p.engine == nil && os.Geteuid() != 0 }

// contain returns the arguments of docker that run a command in a container which is root on Docker's machine, with the
// machine's network and processes, and with the same paths for the repository and the cache.
func (p *place) contain(argv []string) []string {
	socket := strings.TrimPrefix(os.Getenv("DOCKER_HOST"), "unix://")
	if socket == "" {
		socket = "/var/run/docker.sock"
	}
	args := []string{"run", "--rm", "--interactive", "--privileged", "--pid", "host", "--network", "host",
		"--volume", p.repo + ":" + p.repo, "--volume", p.cache + ":" + p.cache, "--volume", socket + ":/var/run/docker.sock",
		"--env", "HOME=" + os.Getenv("HOME"), "--env", "XDG_CACHE_HOME=" + filepath.Dir(p.cache),
		"--env", "KUBECONFIG=" + filepath.Join(p.runDir(), "kubeconfig"), "--workdir", p.repo}
	for _, program := range clients {
		if path := p.find(program); path != "" {
			args = append(args, "--volume", path+":/usr/local/bin/"+program+":ro")
		}
	}
	return append(append(args, p.Outside), argv...)
}

// find returns the path of a client.
func (p *place) find(program string) string {
	for _, dir := range p.Tools {
		if path := filepath.Join(dir, program); executable(path) {
			return path
		}
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return ""
	}
	return path
}

func executable(path string) bool {
	s, err := os.Stat(path)
	return err == nil && !s.IsDir() && s.Mode()&0o111 != 0
}
