package lab

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/holdfast-lb/holdfast/e2e/lab/hostinit"
	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
)

const apiPort = "6443"

// podRanges are those that all nodes' pod prefixes are from.
const podRanges = "10.244.0.0/16,fd00:244::/48"

// server returns the URL of the API server.
func server(cp wire.Host) string {
	return "https://" + net.JoinHostPort(cp.Legs[0].V4.Addr().String(), apiPort)
}

// readyz answers 200 once the bootstrap RBAC is written, among other things:
// a controller-manager that starts before it ends for good.
func readyz(cp wire.Host) string { return server(cp) + "/readyz" }

// controlPlane returns the services of the control plane, beside the services of a node.
func (l *Lab) controlPlane(cp wire.Host) []hostinit.Service {
	return []hostinit.Service{
		l.service("etcd", "", "etcd", etcdArgs()...),
		l.service("kube-apiserver", "", "kube-apiserver", apiServerArgs(cp.Legs[0].V4.Addr())...),
		l.service("kube-controller-manager", readyz(cp), "kube-controller-manager", controllerManagerArgs(l.Config)...),
		l.service("kube-scheduler", readyz(cp), "kube-scheduler", withUser("kube-scheduler",
			"--leader-elect=false", "--kube-api-qps=500", "--kube-api-burst=1000")...),
	}
}

func etcdArgs() []string {
	const client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
	return []string{
		"--name=cp", "--data-dir=/var/lib/etcd",
		// The lab's data dies with it.
		"--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=cp=" + peer,
	}
}

func apiServerArgs(addr netip.Addr) []string {
	return []string{
		"--etcd-servers=http://127.0.0.1:2379",
		"--advertise-address=" + addr.String(), "--secure-port=" + apiPort,
		"--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112",
		"--tls-cert-file=" + pkiDir + "/apiserver.crt", "--tls-private-key-file=" + pkiDir + "/apiserver.key",
		"--client-ca-file=" + pkiDir + "/ca.crt",
		"--kubelet-certificate-authority=" + pkiDir + "/ca.crt",
		"--kubelet-client-certificate=" + pkiDir + "/kubelet-client.crt",
		"--kubelet-client-key=" + pkiDir + "/kubelet-client.key",
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + pkiDir + "/sa.pub", "--service-account-signing-key-file=" + pkiDir + "/sa.key",
		"--requestheader-client-ca-file=" + pkiDir + "/front-proxy-ca.crt",
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file=" + pkiDir + "/front-proxy-client.crt",
		"--proxy-client-key-file=" + pkiDir + "/front-proxy-client.key",
		// Webhooks are reached at the pod's address, over the nodes' routes.
		"--enable-aggregator-routing=true",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true", "--profiling=false",
	}
}

func controllerManagerArgs(c Config) []string {
	args := withUser("kube-controller-manager",
		"--service-account-private-key-file="+pkiDir+"/sa.key", "--root-ca-file="+pkiDir+"/ca.crt",
		"--cluster-signing-cert-file="+pkiDir+"/ca.crt", "--cluster-signing-key-file="+pkiDir+"/ca.key",
		"--use-service-account-credentials=true", "--leader-elect=false",
		"--kube-api-qps=500", "--kube-api-burst=1000")
	if c.plugin().IsLabs {
		args = append(args, "--allocate-node-cidrs=false")
	} else {
		args = append(args, "--allocate-node-cidrs=true", "--cluster-cidr="+podRanges)
	}
	if c.NodeMonitorGracePeriod > 0 {
		args = append(
			args,
			fmt.Sprintf("--node-monitor-grace-period=%s", c.NodeMonitorGracePeriod),
			"--node-monitor-period=1s",
		)
	}
	return args
}

// withUser adds the flags that name a component's credentials.
func withUser(component string, args ...string) []string {
	file := pkiDir + "/" + component + ".kubeconfig"
	return append(
		[]string{"--kubeconfig=" + file, "--authentication-kubeconfig=" + file, "--authorization-kubeconfig=" + file},
		args...)
}
