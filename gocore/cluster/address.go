package cluster

import (
	"net"

	"fptps/gocore/fault"
)

// LocalAddress is this host's address on the route to the scheduler. It sends no packet.
func LocalAddress(schedulerHost string) (string, error) {
	c, err := net.Dial("udp", net.JoinHostPort(schedulerHost, "9")) // any port: UDP only asks the routing table
	if err != nil {
		return "", fault.New(fault.Connect, "no way to the scheduler at %s: %v. Check DMLC_PS_ROOT_URI, or set DMLC_NODE_HOST", schedulerHost, err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).IP.String(), nil
}

// bindHost is the address to bind so that host reaches this node: host itself if it is an
// address of this machine, else all interfaces (a name, or an address behind NAT).
func bindHost(host string) string {
	ip := net.ParseIP(host)
	if ip == nil {
		return ""
	}
	addresses, _ := net.InterfaceAddrs()
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip) {
			return host
		}
	}
	if ip.IsLoopback() {
		return host
	}
	return ""
}
