//go:build proxy

package main

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/haproxy"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// What providers' guides have users write for a server behind a load balancer that sends the PROXY protocol: nginx, as
// ingress-nginx writes it for use-proxy-protocol, and HAProxy. Each answers with the client and the destination that it
// believes in.
const (
	nginxGuide = `daemon off;
user root;
pid %[1]s/nginx.pid;
error_log stderr;
events {}
http {
  access_log off;
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  server {
    listen 80 proxy_protocol;
    listen [::]:80 proxy_protocol;
    real_ip_header proxy_protocol;
    real_ip_recursive on;
    set_real_ip_from 0.0.0.0/0;
    set_real_ip_from ::/0;
    location / { return 200 "$remote_addr $remote_port $proxy_protocol_server_addr $proxy_protocol_server_port\n"; }
  }
  server {
    listen 8080;
    real_ip_header X-Forwarded-For;
    real_ip_recursive on;
    set_real_ip_from 10.1.0.0/24;
    location / { return 200 "$remote_addr $http_x_forwarded_proto $http_x_forwarded_port\n"; }
  }
}
`
	haproxyGuide = `defaults
  mode http
  timeout client 10s
  timeout server 10s
  timeout connect 1s
frontend web
  bind :81 accept-proxy
  bind [::]:81 v6only accept-proxy
  http-request return status 200 content-type text/plain lf-string "%[src] %[src_port] %[dst] %[dst_port]\n"
`
)

// server runs a program with a file in the pods' network, until the end of the test.
func (n *network) server(port, file, text string, command ...string) {
	n.Helper()
	path, err := exec.LookPath(command[0])
	if err != nil {
		n.Fatalf("install Debian's packages nginx-light and haproxy: %v", err)
	}
	dir := n.TempDir()
	must(n, os.WriteFile(filepath.Join(dir, file), []byte(strings.ReplaceAll(text, "%[1]s", dir)), 0o600))
	cmd := n.pods.Command(path, append(command[1:], filepath.Join(dir, file))...)
	cmd.Stdout, cmd.Stderr = n.Output(), n.Output()
	cmd.WaitDelay = time.Second // nginx has children, which have its output until the namespace ends
	must(n, cmd.Start())
	n.Cleanup(func() { _ = cmd.Wait() }) // it dies with the test
	nstest.Until(n.T, 10*time.Second, command[0]+" listens", func() bool {
		var c net.Conn
		n.pods.Do(func() { c, err = net.Dial("tcp", "10.1.0.1:"+port) })
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// get is the answer to a request from an address of the client, and the address and port that it came from.
func (n *network) get(from, to string) (answer string, local net.Addr) {
	n.Helper()
	c, err := n.dial(from, to)
	must(n, err)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n")
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err.Error(), c.LocalAddr()
	}
	defer response.Body.Close()
	line, _ := bufio.NewReader(response.Body).ReadString('\n') // without one the answer is empty
	return strings.TrimSpace(line), c.LocalAddr()
}

// Real servers read the header, of both versions, over both families, and in a family other than their own.
func TestGuides(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		n := newNetwork(t)
		n.server("80", "nginx.conf", nginxGuide, "nginx", "-c")
		n.server("81", "haproxy.cfg", haproxyGuide, "haproxy", "-db", "-f")
		header := func(version int) func(*haproxy.Service) { return func(s *haproxy.Service) { s.Header = version } }
		newPod(t, testService("nginx1", 31001, header(1), "10.1.0.1:80"),
			testService("nginx2", 31002, header(2), "[fd01::1]:80"),
			testService("haproxy1", 31003, header(1), "[fd01::1]:81"), testService("haproxy2", 31004, header(2), "10.1.0.1:81"),
			testService("web", 31005, func(s *haproxy.Service) { s.HTTP = true }, "10.1.0.1:8080"))
		for from, to := range map[string]string{"10.0.0.10": "192.0.2.10 443", "fd00::10": "2001:db8::10 443"} {
			for port := 31001; port <= 31004; port++ {
				got, local := n.get(from, door(from, port))
				if want := fmt.Sprintf("%s %d %s", from, local.(*net.TCPAddr).Port, to); got != want {
					t.Errorf("from %s at port %d: %q, want %q", from, port, got, want)
				}
			}
			if got, _ := n.get(from, door(from, 31005)); got != from+" http 443" {
				t.Errorf("from %s by X-Forwarded-For: %q", from, got)
			}
		}
	})
}
